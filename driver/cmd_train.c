// SPDX-License-Identifier: Apache-2.0
/* cmd_train.c - `lathe train`: options to a run. */
#include "driver/command.h"
#include "driver/train_run.h"
#include <signal.h>
#include <string.h>

static volatile int stop_requested;

static void request_stop(int sig) {
    (void)sig;
    if (stop_requested) signal(sig, SIG_DFL); /* the second one ends the process */
    stop_requested = 1;
}

static void catch_signals(void) {
    struct sigaction sa = {.sa_handler = request_stop};
    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
}

int cmd_train(int argc, char **argv) {
    struct train_args a = {.open = LATHE_MODEL_OPTIONS_INIT,
                           .train = LATHE_TRAIN_OPTIONS_INIT,
                           .keep = 3,
                           .init_random = -1,
                           .stop = &stop_requested};
    struct model_args m = MODEL_ARGS_INIT;
    double betas[2] = {-1, -1};
    int64_t seed = 0, accumulate = 1;
    bool verbose = false, nesterov = false, reference = false;
    const char *pos[1], *compiled = NULL;
    // clang-format off
    const struct option_spec spec[] = {
        {"--data", OPTION_TEXT, &a.data, 0, 0, "SRC", ".npz/.npy/.safetensors arrays, .bin tokens, any other file as bytes"},
        {"-o", OPTION_TEXT, &a.out, 0, 0, "RUN", "run directory (default: a new lathe-run)"},
        {"--loss", OPTION_TEXT, &a.train.loss, 0, 0, "EXPR", "cross_entropy(OUT, labels), next_token(OUT), mse(OUT, target), bce_with_logits(OUT, target), or a scalar output"},
        {"--recipe", OPTION_TEXT, &a.train.recipe, 0, 0, "NAME", "numbers to compute with: a name of `lathe recipes` or a file (default fp32)"},
        {"--device", OPTION_TEXT, &a.train.device, 0, 0, "DEV", "cpu, cuda, cuda:N or auto (default): the first GPU, else the CPU"},
        {"--compiled", OPTION_TEXT, &compiled, 0, 0, "FILE", "kernels made by `lathe compile`, so that nothing is compiled here"},
        {"--optimizer", OPTION_TEXT, &a.train.optimizer, 0, 0, "NAME", "adamw, adam or sgd (default adamw)"},
        {"--lr", OPTION_FLOAT, &a.train.lr, 0, 1e6, "F", "learning rate (default 0.001)"},
        {"--betas", OPTION_PAIR, betas, 0, 0.9999999999, "A,B", "Adam's betas (default 0.9,0.999)"},
        {"--eps", OPTION_FLOAT, &a.train.eps, 0, 1, "F", "Adam's epsilon (default 1e-8)"},
        {"--weight-decay", OPTION_FLOAT, &a.train.weight_decay, 0, 1e3, "F", "default 0.01 for adamw, 0 otherwise"},
        {"--momentum", OPTION_FLOAT, &a.train.momentum, 0, 1, "F", "SGD momentum"},
        {"--nesterov", OPTION_FLAG, &nesterov, 0, 0, NULL, "SGD with Nesterov momentum"},
        {"--schedule", OPTION_TEXT, &a.schedule_text, 0, 0, "S", "constant, linear or cosine, e.g. cosine:warmup=100,floor=0.1"},
        {"--clip", OPTION_FLOAT, &a.train.clip, 0, 1e30, "F", "largest global gradient norm"},
        {"--batch", OPTION_INT, &m.batch, 1, 1e9, "N", "samples per step, where the model leaves it open"},
        {"--accumulate", OPTION_INT, &accumulate, 1, 1e6, "N", "micro-batches per update, each of the same weight"},
        {"--seq", OPTION_INT, &m.seq, 1, 1e9, "N", "tokens per sample, where the model leaves it open"},
        {"--steps", OPTION_INT, &a.steps, 1, 1e15, "N", "updates"},
        {"--epochs", OPTION_INT, &a.epochs, 1, 1e9, "N", "passes over the data (default 1)"},
        {"--seed", OPTION_INT, &seed, 0, 9e15, "N", "data order, dropout, random weights (default 0)"},
        {"--train", OPTION_TEXT, &m.train, 0, 0, "REGEX", "also train parameters that would be frozen"},
        {"--freeze", OPTION_TEXT, &m.freeze, 0, 0, "REGEX", "keep parameters as they are"},
        {"--eval", OPTION_TEXT, &a.eval, 0, 0, "SRC", "data to evaluate on at the end"},
        {"--eval-every", OPTION_INT, &a.eval_every, 1, 1e15, "N", "and every N steps"},
        {"--save-every", OPTION_INT, &a.save_every, 1, 1e15, "N", "checkpoint every N steps, besides the end"},
        {"--numerics", OPTION_INT, &a.numerics, 1, 1e15, "N", "8-bit states and delayed scales into the metrics every N steps"},
        {"--keep", OPTION_INT, &a.keep, 0, 1e6, "N", "checkpoints to keep (default 3, 0 all)"},
        {"--resume", OPTION_TEXT, &a.resume, 0, 0, "RUN", "continue a run from its newest checkpoint"},
        {"--dump-grads", OPTION_TEXT, &a.dump_grads, 0, 0, "FILE", "gradients of the first step, as .safetensors"},
        {"--map", OPTION_LIST, &m.map, 0, 0, "IN=ARRAY", "feed input IN from array ARRAY"},
        {"--init-random", OPTION_FLOAT, &a.init_random, 0, 100, "STD", "replace weight matrices by N(0, STD)"},
        {"--threads", OPTION_INT, &m.threads, 1, 1024, "N", "CPU threads (default: all)"},
        {"--profile", OPTION_FLAG, &a.profile, 0, 0, NULL, "time per launch at the end"},
        {"--reference", OPTION_FLAG, &reference, 0, 0, NULL, "no optimising passes, no fusion"},
        {"--quiet", OPTION_FLAG, &a.quiet, 0, 0, NULL, "no progress"},
        {"--verbose", OPTION_FLAG, &verbose, 0, 0, NULL, "notes as well as warnings"},
    };
    // clang-format on
    int rc = options_parse(command_named("train"), spec, (int)(sizeof spec / sizeof spec[0]), argc,
                           argv, pos, 1, 1);
    if (rc) return rc == 1 ? 0 : rc;
    if (!a.data) return fail(2, "train: --data is missing");
    if (a.steps && a.epochs) return fail(2, "train: give --steps or --epochs, not both");
    if (a.eval_every && !a.eval) return fail(2, "train: --eval-every needs --eval SRC");
    if (a.resume && a.out)
        return fail(2, "train: --resume continues in its own directory; leave out -o");
    if (!schedule_parse(a.schedule_text, &a.schedule))
        return fail(
            2, "train --schedule: '%s' is none of constant, linear, cosine with warmup=, floor=",
            a.schedule_text);
    m.data = a.data;
    a.model = pos[0];
    a.open = model_options(&m);
    a.train.beta1 = betas[0];
    a.train.beta2 = betas[1];
    a.train.nesterov = nesterov;
    a.train.seed = (uint64_t)seed;
    a.train.no_optimize = reference;
    a.train.accumulate = accumulate;
    if (!a.train.device) a.train.device = "auto";
    lathe_context *c = command_context_with(verbose, m.threads, compiled);
    if (!c) return 1;
    catch_signals();
    enum status st = train_run(c, &a);
    int code = command_end(c, st);
    return a.started && st == ST_IO ? 1 : code;
}
