/* Preloaded into a process: its n-th fsync, fdatasync or msync from now fails once with EIO, later ones succeed.
 *
 * Only syncs of files whose path contains SHIM_MATCH count; msync, which has no descriptor, counts where it is empty.
 * SHIM_SWITCH names a file that holds n; it is counted down and deleted. SHIM_FAILED names a file that then gets the time of the
 * failure, CLOCK_MONOTONIC in ms. Without the switch file every call goes through.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

static int matches(int fd) {
    const char *match = getenv("SHIM_MATCH");
    char link[64], target[4096];
    if (match == NULL || *match == '\0') return 1;
    if (fd < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, target, sizeof target - 1);
    if (length < 0) return 0;
    target[length] = '\0';
    return strstr(target, match) != NULL;
}

static int due(int fd) {
    const char *path = getenv("SHIM_SWITCH"), *failed = getenv("SHIM_FAILED");
    if (path == NULL || failed == NULL || access(path, F_OK) != 0 || !matches(fd)) return 0;
    int fails = 0, left = 0;
    pthread_mutex_lock(&counting);
    FILE *file = fopen(path, "r+");
    if (file != NULL) {
        if (fscanf(file, "%d", &left) == 1) {
            fails = --left <= 0;
            rewind(file);
            fprintf(file, "%d\n", left);
        }
        fclose(file);
        if (fails) {
            struct timespec now;
            unlink(path);
            clock_gettime(CLOCK_MONOTONIC, &now);
            FILE *out = fopen(failed, "w");
            if (out != NULL) {
                fprintf(out, "%lld\n", (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000);
                fclose(out);
            }
        }
    }
    pthread_mutex_unlock(&counting);
    return fails;
}

int fsync(int fd) {
    static int (*real)(int);
    if (real == NULL) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    if (due(fd)) { errno = EIO; return -1; }
    return real(fd);
}

int fdatasync(int fd) {
    static int (*real)(int);
    if (real == NULL) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    if (due(fd)) { errno = EIO; return -1; }
    return real(fd);
}

int msync(void *start, size_t bytes, int flags) {
    static int (*real)(void *, size_t, int);
    if (real == NULL) real = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "msync");
    if (due(-1)) { errno = EIO; return -1; }
    return real(start, bytes, flags);
}
