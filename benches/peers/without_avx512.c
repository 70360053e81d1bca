// Lets a process take its machine for one without AVX-512 and AMX: `cpu.py --without-avx512` preloads this into all that it times.
//
// The kernel is asked to fault `cpuid` (Intel SDM, volume 3, "CPUID faulting"; Linux: arch_prctl), and the handler of the fault
// answers with the bits of those extensions cleared (volume 2, CPUID, leaf 07H). glibc has chosen its memcpy and memset by then.
// Needs a processor with `cpuid_fault` in /proc/cpuinfo. A program that installs a handler of SIGSEGV of its own is not served.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_CPUID_SET 0x1012
#define BIT(n) (1u << (n))

static long let_cpuid(int allowed) { return syscall(SYS_arch_prctl, ARCH_CPUID_SET, allowed); }

static void answer(int signal_number, siginfo_t *info, void *context) {
    (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *code = (const unsigned char *)registers[REG_RIP];
    if (code[0] != 0x0f || code[1] != 0xa2) {
        signal(signal_number, SIG_DFL);
        return;
    }
    unsigned leaf = registers[REG_RAX], part = registers[REG_RCX];
    unsigned a = leaf, b, c = part, d;
    let_cpuid(1);
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    let_cpuid(0);
    if (leaf == 7 && part == 0) {
        // AVX512: F, DQ, IFMA, PF, ER, CD, BW, VL; VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ.
        b &= ~(BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31));
        c &= ~(BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14));
        // AVX512: 4VNNIW, 4FMAPS, VP2INTERSECT, FP16. AMX: BF16, TILE, INT8.
        d &= ~(BIT(2) | BIT(3) | BIT(8) | BIT(23) | BIT(22) | BIT(24) | BIT(25));
    }
    if (leaf == 7 && part == 1) {
        // AVX-VNNI, AVX512-BF16, AMX-FP16; AVX-VNNI-INT8, AMX-COMPLEX, AVX-VNNI-INT16, AVX10.
        a &= ~(BIT(4) | BIT(5) | BIT(21));
        d &= ~(BIT(4) | BIT(8) | BIT(10) | BIT(19));
    }
    registers[REG_RAX] = a;
    registers[REG_RBX] = b;
    registers[REG_RCX] = c;
    registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void) {
    struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    if (let_cpuid(0) != 0) {
        fputs("this machine cannot fault cpuid, so AVX-512 cannot be hidden\n", stderr);
        exit(1);
    }
}
