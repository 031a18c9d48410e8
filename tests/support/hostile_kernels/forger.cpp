// A library that forges a pass in whatever process loads it. The test writes the paths into the library.
//
// In the verifier itself it puts a report that says "verified" where the report is expected, and ends the process with
// exit code 0. In any other process it leaves a file in the user's home.

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ROOM 512
static volatile char root[ROOM] = "@root@", honest[ROOM] = "@honest@", report[ROOM] = "@report@", ran[ROOM] = "@ran@";

static int copied(const char* from, const char* to) {
    static char held[1 << 20];
    const int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const long n = read(in, held, sizeof held);
    return n > 0 && write(out, held, n) == n;
}

__attribute__((constructor)) static void forge() {
    char number[32] = {};
    const int in = open((const char*)root, O_RDONLY);
    if (in < 0 || read(in, number, sizeof number - 1) <= 0) return;
    if (atoi(number) == getpid()) {
        copied((const char*)honest, (const char*)report);
        _exit(0);
    }
    close(open((const char*)ran, O_WRONLY | O_CREAT, 0600));
}
