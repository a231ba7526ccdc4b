# SPDX-License-Identifier: Apache-2.0
# The only makefile. `make help` lists the targets. Variants live in directories of their own:
#   make SAN=address,undefined unit    make SAN=thread unit    make DEBUG=1    make CC=clang
VERSION := 0.1.0
PREFIX  ?= /usr/local
CC      ?= cc
AR      ?= ar
V       ?=
comma   := ,
BUILD   ?= build$(if $(SAN),-$(subst $(comma),-,$(SAN)))$(if $(DEBUG),-debug)
FOLDERS ?= base ir frontend passes codegen runtime driver
Q       := $(if $(V),,@)

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wundef -Wvla \
        -Wconversion -Wno-sign-conversion $(if $(WERROR),-Werror)
# Under a sanitizer only what computes is optimised: the compiler needs a third of the time without.
OPT  := $(if $(DEBUG),-O0 -g3,$(if $(SAN),$(if $(findstring fuzzer,$(SAN)),-O1,-O0) -g,-O2 -g))
TEST_OPT := $(if $(DEBUG)$(SAN),,-O1)
override CFLAGS += -std=c11 -D_GNU_SOURCE $(OPT) $(WARN) -fPIC -fvisibility=hidden -fno-math-errno \
        -ffp-contract=off -pthread -I. -I$(BUILD)/gen $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer) \
        -DLATHE_VERSION='"$(VERSION)"'
override LDFLAGS += -pthread $(if $(SAN),-fsanitize=$(SAN))

# Small libraries are linked statically so that the binary runs where they are not installed; the
# shared library cannot, because distributions build static archives without -fPIC.
STATIC_LIBS := -l:libprotobuf-c.a -l:libjansson.a -l:libminizip.a -l:libz.a
LIBS        := $(STATIC_LIBS) -lopenblas -ldl -lm
SHARED_LIBS := -lprotobuf-c -ljansson -lminizip -lz -lopenblas -ldl -lm

SRC      := $(foreach d,$(FOLDERS),$(wildcard $(d)/*.c) $(wildcard $(d)/*/*.c))
# The command line is not part of the library.
MAIN_SRC := $(filter driver/main.c driver/command.c driver/options.c driver/progress.c driver/train_run.c driver/cmd_%.c,$(SRC))
LIB_SRC  := $(filter-out $(MAIN_SRC) codegen/kernels/embed.c,$(SRC))
LIB_OBJ  := $(LIB_SRC:%.c=$(BUILD)/obj/%.o) $(if $(filter frontend,$(FOLDERS)),$(BUILD)/obj/gen/onnx.pb-c.o) \
            $(if $(filter codegen,$(FOLDERS)),$(BUILD)/obj/gen/kernels.o)
MAIN_OBJ := $(MAIN_SRC:%.c=$(BUILD)/obj/%.o)

# `make` with its own target installs nothing; demo and test install what is missing first.
all: $(BUILD)/lathe $(BUILD)/liblathe.a $(BUILD)/liblathe.so

help:
	@echo "make            build $(BUILD)/lathe, liblathe.a and liblathe.so"
	@echo "make demo       install what is missing, train a small GPT on real text (about a minute)"
	@echo "make test       install what is missing, run every test"
	@echo "make deps       install what is missing for building and testing (Debian, as root)"
	@echo "make check      include rule, banned functions, formatting, headers, file sizes"
	@echo "make unit       unit tests only (TESTS=\"graph text\" for some)"
	@echo "make golden     the text files of tests/golden; make bless rewrites what they expect"
	@echo "make models     train the models of tests/models and of MODELS=$(MODELS) against their references"
	@echo "make kernels    every GPU kernel of those models through NVRTC for three architectures; no GPU needed"
	@echo "make conformance  the ONNX node tests in NODE_TESTS=$(NODE_TESTS)"
	@echo "make cli        the command line, end to end"
	@echo "make samples    build samples/*.c against an installed copy, as C and as C++"
	@echo "make gpu        programs for a machine with a GPU; make gpu-test and gpu-bench run there"
	@echo "make install    PREFIX and DESTDIR are respected; make uninstall takes it back"
	@echo "make format     clang-format every source; make wc counts lines; make clean"
	@echo "variants        SAN=address,undefined  SAN=thread  DEBUG=1  WERROR=1  CC=clang  BUILD=DIR  V=1"

ifneq ($(SAN),)
$(BUILD)/obj/runtime/%.o $(BUILD)/obj/base/%.o: OPT = -O1 -g
endif
# Compiled kernels of the CPU backend want the vector units; the choice is made per file at run time.
$(BUILD)/obj/%.o: %.c
	@mkdir -p $(dir $@)
	@$(if $(V),,echo "  CC  $<")
	$(Q)$(CC) $(CFLAGS) $(CFLAGS_$(basename $(notdir $<))) -MMD -MP -c $< -o $@

$(BUILD)/gen/onnx.pb-c.c: frontend/onnx.proto
	@mkdir -p $(dir $@)
	$(Q)protoc-c --proto_path=frontend --c_out=$(BUILD)/gen $<
$(BUILD)/gen/onnx.pb-c.h: $(BUILD)/gen/onnx.pb-c.c
$(BUILD)/obj/gen/onnx.pb-c.o: $(BUILD)/gen/onnx.pb-c.c
	@mkdir -p $(dir $@)
	$(Q)$(CC) $(filter-out -W%,$(CFLAGS)) -w -MMD -MP -c $< -o $@
$(filter $(BUILD)/obj/frontend/%,$(LIB_OBJ)): | $(BUILD)/gen/onnx.pb-c.h

# The texts of codegen/kernels, compiled at run time, travel inside the library.
KERNELS := $(sort $(wildcard codegen/kernels/*.cu codegen/kernels/*.cuh))
$(BUILD)/gen/embed: codegen/kernels/embed.c
	@mkdir -p $(dir $@)
	$(Q)$(CC) -std=c11 -O1 $(WARN) -o $@ $<
$(BUILD)/gen/kernels.c: $(BUILD)/gen/embed $(KERNELS)
	$(Q)$(BUILD)/gen/embed $(KERNELS) >$@
$(BUILD)/obj/gen/kernels.o: $(BUILD)/gen/kernels.c
	@mkdir -p $(dir $@)
	$(Q)$(CC) $(CFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/liblathe.a: $(LIB_OBJ)
	@rm -f $@
	$(Q)$(AR) rcs $@ $^
$(BUILD)/liblathe.so: $(LIB_OBJ)
	$(Q)$(CC) -shared $(LDFLAGS) -Wl,-soname,liblathe.so.0 $(if $(SAN),,-Wl,-z,defs) -o $@ $^ $(SHARED_LIBS)
$(BUILD)/lathe: $(MAIN_OBJ) $(BUILD)/liblathe.a
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

# ---- unit tests: one binary for each tests/unit/test_*.c -----------------------------------------
TESTS    ?= $(patsubst tests/unit/test_%.c,%,$(wildcard tests/unit/test_*.c))
UNIT_BIN := $(TESTS:%=$(BUILD)/tests/test_%)
$(BUILD)/tests/test_%: tests/unit/test_%.c $(BUILD)/liblathe.a
	@mkdir -p $(dir $@)
	$(Q)$(CC) $(CFLAGS) $(TEST_OPT) -Itests/unit -MMD -MP $(LDFLAGS) -o $@ $< $(BUILD)/liblathe.a -lcheck -lsubunit -lrt $(LIBS)
# A driver on host memory for test_cuda_run and the command line; the names are those that the backend opens.
FAKE_CUDA  := $(BUILD)/tests/fake/libcuda.so.1 $(BUILD)/tests/fake/libcublasLt.so.13
FAKE_NVRTC := $(BUILD)/tests/fake/nvrtc/libnvrtc.so.13
$(FAKE_CUDA) $(FAKE_NVRTC): tests/tools/fake_cuda.c runtime/cuda/cuda_api.h
	@mkdir -p $(dir $@)
	$(Q)$(CC) $(CFLAGS) $(if $(findstring Lt,$@),-DFAKE_LT) $(if $(findstring nvrtc,$@),-DFAKE_NVRTC) $(LDFLAGS) -shared -Wl,-soname,$(notdir $@) -o $@ $<
$(BUILD)/tests/test_cuda_run: | $(FAKE_CUDA)
COAT_VECTORS ?= ../shared/research/coat_vectors.json
unit: $(UNIT_BIN)
	@COAT_VECTORS=$(wildcard $(COAT_VECTORS)) tests/unit.sh $(UNIT_BIN)

# ---- tests beyond units: each prints "NAME: N passed, N failed" ------------------------------------
MODELS ?= ../shared/models
deps:
	@tests/deps.sh test
check: $(LIB_OBJ) $(MAIN_OBJ)
	@CC="$(CC)" tests/check.sh $(BUILD)
golden: $(BUILD)/lathe
	@tests/golden.sh $(BUILD)
bless: $(BUILD)/lathe
	@tests/golden.sh $(BUILD) bless
$(BUILD)/tests/test_models: tests/model/test_models.c tests/model/match.c $(BUILD)/liblathe.a
	@mkdir -p $(dir $@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.c %.a,$^) $(LIBS)
$(BUILD)/tests/test_kernels: tests/model/test_kernels.c $(BUILD)/liblathe.a
	@mkdir -p $(dir $@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.c %.a,$^) $(LIBS)
$(BUILD)/tests/fixture: tests/tools/fixture.c $(BUILD)/liblathe.a
	@mkdir -p $(dir $@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.c %.a,$^) $(LIBS)
models: $(BUILD)/tests/test_models
	@$(BUILD)/tests/test_models tests/models $(MODELS)
kernels: $(BUILD)/tests/test_kernels
	@$(BUILD)/tests/test_kernels $(if $(JOBS),--jobs $(JOBS)) tests/models $(MODELS)
NODE_TESTS ?= ../shared/onnx-node-tests.tar.xz
$(BUILD)/tests/conformance: tests/conformance/conformance.c $(BUILD)/liblathe.a
	@mkdir -p $(dir $@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.c %.a,$^) $(LIBS)
conformance: $(BUILD)/tests/conformance
	@BUILD=$(BUILD) tests/conformance/run.sh $(NODE_TESTS)
cli: $(BUILD)/lathe $(BUILD)/tests/fixture $(FAKE_CUDA) $(FAKE_NVRTC)
	@tests/cli.sh $(BUILD)
# Everything that the parts below run, so that several can run at the same time.
programs: $(UNIT_BIN) $(FAKE_CUDA) $(BUILD)/tests/test_models \
    $(if $(SAN),,all $(FAKE_NVRTC) $(BUILD)/tests/fixture $(BUILD)/tests/test_kernels $(BUILD)/tests/conformance)
samples: all
	@tests/samples.sh $(BUILD)
test:
	@tests/deps.sh test
	@tests/all.sh "$(MODELS)"
demo:
	@tests/deps.sh build
	@$(MAKE) --no-print-directory -j2 $(BUILD)/lathe
	@samples/demo.sh $(BUILD)

# Programs for a machine with a GPU. They are built here or there; gpu-test and gpu-bench run there.
$(BUILD)/gpu_test: tests/gpu/gpu_test.c $(BUILD)/liblathe.a
	$(Q)$(CC) $(CFLAGS) -Itests/unit -MMD -MP $(LDFLAGS) -o $@ $< $(BUILD)/liblathe.a $(LIBS)
$(BUILD)/attention_test: tests/gpu/attention_test.c $(BUILD)/liblathe.a
	$(Q)$(CC) $(CFLAGS) -MMD -MP $(LDFLAGS) -o $@ $< $(BUILD)/liblathe.a $(LIBS)
$(BUILD)/optim_bench: tests/gpu/optim_bench.c $(BUILD)/liblathe.a
	$(Q)$(CC) $(CFLAGS) -Itests/unit -MMD -MP $(LDFLAGS) -o $@ $< $(BUILD)/liblathe.a $(LIBS)
$(BUILD)/product_bench: tests/gpu/product_bench.c $(BUILD)/liblathe.a
	$(Q)$(CC) $(CFLAGS) -MMD -MP $(LDFLAGS) -o $@ $< $(BUILD)/liblathe.a $(LIBS)
$(BUILD)/group_bench: tests/gpu/group_bench.c $(BUILD)/liblathe.a
	$(Q)$(CC) $(CFLAGS) -MMD -MP $(LDFLAGS) -o $@ $< $(BUILD)/liblathe.a $(LIBS)

gpu: $(BUILD)/lathe $(BUILD)/gpu_test $(BUILD)/attention_test $(BUILD)/optim_bench $(BUILD)/product_bench $(BUILD)/group_bench
PEERS       ?= ../shared/peers
FULL_MODELS ?= $(BUILD)/full
gpu-test:
	@tests/gpu/test.sh $(BUILD) tests/models $(wildcard $(MODELS) $(BUILD)/models)
gpu-bench:
	@tests/gpu/bench.sh $(BUILD) "$(firstword $(wildcard $(PEERS) $(BUILD)/peers))" "$(FULL_MODELS)" $(CASES)

# ---- installing ------------------------------------------------------------------------------------
SOVERSION := 0
INCLUDEDIR ?= $(PREFIX)/include
LIBDIR     ?= $(PREFIX)/lib
BINDIR     ?= $(PREFIX)/bin
# The .pc file is written here because only now PREFIX is certain.
install: all
	install -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(INCLUDEDIR) $(DESTDIR)$(LIBDIR)/pkgconfig
	install -m 755 $(BUILD)/lathe $(DESTDIR)$(BINDIR)/lathe
	install -m 644 include/lathe.h $(DESTDIR)$(INCLUDEDIR)/lathe.h
	install -m 644 $(BUILD)/liblathe.a $(DESTDIR)$(LIBDIR)/liblathe.a
	install -m 755 $(BUILD)/liblathe.so $(DESTDIR)$(LIBDIR)/liblathe.so.$(VERSION)
	ln -sf liblathe.so.$(VERSION) $(DESTDIR)$(LIBDIR)/liblathe.so.$(SOVERSION)
	ln -sf liblathe.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/liblathe.so
	@printf '%s\n' 'prefix=$(PREFIX)' 'includedir=$(INCLUDEDIR)' 'libdir=$(LIBDIR)' '' 'Name: lathe' \
	    'Description: Training of ONNX models from C and C++' 'Version: $(VERSION)' \
	    'Cflags: -I$${includedir}' 'Libs: -L$${libdir} -llathe' \
	    'Libs.private: $(LIBS) -pthread' \
	    > $(DESTDIR)$(LIBDIR)/pkgconfig/lathe.pc
uninstall:
	rm -f $(DESTDIR)$(BINDIR)/lathe $(DESTDIR)$(INCLUDEDIR)/lathe.h $(DESTDIR)$(LIBDIR)/pkgconfig/lathe.pc \
	    $(DESTDIR)$(LIBDIR)/liblathe.a $(DESTDIR)$(LIBDIR)/liblathe.so $(DESTDIR)$(LIBDIR)/liblathe.so.$(SOVERSION) \
	    $(DESTDIR)$(LIBDIR)/liblathe.so.$(VERSION)

# ---- upkeep ----------------------------------------------------------------------------------------
SOURCES = $(shell find include base ir frontend passes codegen runtime driver tests samples -name '*.c' -o -name '*.h')
format:
	clang-format -i $(SOURCES)
wc:
	@for d in base ir frontend passes codegen runtime driver include tests samples; do \
	    printf '%-9s %6d\n' $$d $$(find $$d -name '*.c' -o -name '*.h' -o -name '*.def' -o -name '*.sh' | xargs cat | wc -l); done
clean:
	rm -rf build build-*

-include $(LIB_OBJ:.o=.d) $(MAIN_OBJ:.o=.d) $(UNIT_BIN:=.d)
.PHONY: all help deps check unit golden bless gpu gpu-test gpu-bench kernels models conformance cli samples programs test demo install uninstall format wc clean
.DELETE_ON_ERROR:
