/* Lets the n-th system call that changes a file go wrong; loaded before libc (LD_PRELOAD).
 *
 * A call is cut at a page border: inside a page the kernel does not let a signal interrupt it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OFF, KILL_BEFORE, KILL_HALFWAY, FAIL };

static int mode = OFF, error_number = 0;
static long countdown = 0, calls = 0;

void faults_arm(int new_mode, long position, int new_error) {
    mode = new_mode;
    countdown = position;
    error_number = new_error;
    calls = 0;
}

long faults_calls(void) { return calls; }

static size_t half(size_t size) { return size / 2 / 4096 * 4096; }

/* Only disks fail: pipes and sockets between processes do not. */
static int on_disk(int fd) {
    struct stat found;
    return fstat(fd, &found) != 0 || !(S_ISFIFO(found.st_mode) || S_ISSOCK(found.st_mode));
}

/* Returns -1 if the call is to fail, 1 if it is to be cut in half, else 0. */
static int strike(int fd, int can_be_cut) {
    if (mode == OFF || fd <= 2 || !on_disk(fd) || (mode == KILL_HALFWAY && !can_be_cut)) return 0;
    calls++;
    if (--countdown != 0) return 0;
    if (mode == KILL_BEFORE) { kill(getpid(), SIGKILL); pause(); }
    if (mode == KILL_HALFWAY) return 1;
    errno = error_number;
    return -1;
}

static void die(void) { kill(getpid(), SIGKILL); pause(); }

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    REAL(pwrite);
    int struck = strike(fd, half(size) > 0);
    if (struck < 0) return -1;
    if (struck) { real(fd, data, half(size), offset); die(); }
    return real(fd, data, size, offset);
}

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    int struck = strike(fd, half(size) > 0);
    if (struck < 0) return -1;
    if (struck) { real(fd, data, half(size)); die(); }
    return real(fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(writev);
    int struck = strike(fd, count > 1);
    if (struck < 0) return -1;
    if (struck) { real(fd, parts, (count + 1) / 2); die(); }
    return real(fd, parts, count);
}

int fsync(int fd) {
    REAL(fsync);
    int struck = strike(fd, 0);
    if (struck < 0) return -1;
    return real(fd);
}

int fdatasync(int fd) {
    REAL(fdatasync);
    int struck = strike(fd, 0);
    if (struck < 0) return -1;
    return real(fd);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    int struck = strike(INT_MAX, 1); /* has no descriptor */
    if (struck < 0) return -1;
    if (struck) { real(from, to); die(); }
    return real(from, to);
}
