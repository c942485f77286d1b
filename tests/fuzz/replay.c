// replay - runs a fuzz target over the files of the folders named, as a plain test.

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
    struct stat status;
    FILE *const file = fopen(path, "rb");
    if (!file || fstat(fileno(file), &status) != 0) {
        perror(path);
        return 1;
    }
    int failed = 0;
    if (S_ISREG(status.st_mode)) {
        // Exactly as large as the file, so that a sanitizer sees a read beyond its end.
        const size_t size = (size_t)status.st_size;
        uint8_t *const data = malloc(size > 0 ? size : 1);
        failed = !data || fread(data, 1, size, file) != size;
        if (!failed) {
            fprintf(stderr, "%s: %zu bytes\n", path, size);
            LLVMFuzzerTestOneInput(data, size);
        }
        free(data);
    }
    fclose(file);
    return failed;
}

int main(int argc, char **argv)
{
    int files = 0;
    int failed = 0;
    for (int argument = 1; argument < argc; argument++) {
        struct dirent **entries = NULL;
        const int count = scandir(argv[argument], &entries, NULL, alphasort);
        for (int index = 0; index < count; index++) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", argv[argument], entries[index]->d_name);
            if (entries[index]->d_name[0] != '.') {
                failed += replay_file(path);
                files++;
            }
            free(entries[index]);
        }
        free(entries);
    }
    printf("%d files replayed, %d could not be read\n", files, failed);
    return files == 0 || failed > 0;
}
