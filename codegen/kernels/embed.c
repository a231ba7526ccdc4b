// SPDX-License-Identifier: Apache-2.0
/* embed.c - a tool of the build: writes the kernel files named on the command line as C arrays to
 * standard output, with kernel_file_at (codegen.h) that finds them. Not part of the library. */
#include <stdio.h>
#include <string.h>

static int embed(const char *path, int index) {
    FILE *f = fopen(path, "rb");
    int c, n = 0;
    if (!f) {
        perror(path);
        return 1;
    }
    printf("static const char text_%d[] = {", index);
    for (; (c = fgetc(f)) != EOF; n++) printf("%s%d,", n % 24 ? "" : "\n", c > 127 ? c - 256 : c);
    printf("0};\n");
    fclose(f);
    return 0;
}

int main(int argc, char **argv) {
    printf("// SPDX-License-Identifier: Apache-2.0\n#include \"codegen/codegen.h\"\n");
    for (int k = 1; k < argc; k++)
        if (embed(argv[k], k)) return 1;
    printf("static const struct kernel_file files[] = {\n");
    for (int k = 1; k < argc; k++) {
        const char *slash = strrchr(argv[k], '/');
        printf("    {\"%s\", text_%d, sizeof text_%d - 1},\n", slash ? slash + 1 : argv[k], k, k);
    }
    printf("};\nconst struct kernel_file *kernel_file_at(int i) {\n"
           "    return i >= 0 && i < %d ? &files[i] : 0;\n}\n",
           argc - 1);
    return 0;
}
