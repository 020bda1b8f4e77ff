// A small stack machine: each thread runs its own byte code through a switch, with calls that are not inlined.
__device__ __noinline__ unsigned int rotate_and_mix(unsigned int a, unsigned int b) {
    unsigned int r = __funnelshift_l(a, a, b & 31);
    return r * 2654435761u ^ (b >> 3);
}

__device__ __noinline__ int greatest_divisor(int a, int b) {
    while (b != 0) {
        int t = a % b;
        a = b;
        b = t;
    }
    return a < 0 ? -a : a;
}

extern "C" __global__ void interpret(const unsigned char *code, int *results, int length, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int stack[16], top = 0;
    stack[0] = i + 1;
    for (int pc = 0; pc < length; pc++) {
        int op = code[i * length + pc];
        int a = stack[top], b = top > 0 ? stack[top - 1] : 3;
        switch (op % 12) {
            case 0: if (top < 15) stack[++top] = op; break;
            case 1: if (top > 0) top--; break;
            case 2: stack[top] = a + b; break;
            case 3: stack[top] = a - b; break;
            case 4: stack[top] = a * b; break;
            case 5: stack[top] = b != 0 && b != -1 ? a / b : a; break;
            case 6: stack[top] = a ^ (b << 3); break;
            case 7: stack[top] = (int)rotate_and_mix(a, b); break;
            case 8: stack[top] = greatest_divisor(a, b); break;
            case 9: stack[top] = __popc(a) + __clz(b); break;
            case 10: if (top < 15) { stack[top + 1] = a >> 1; top++; } break;
            default: stack[top] = __brev(a) & 0x7fffffff; break;
        }
    }
    results[i] = stack[top] + 31 * top;
}
