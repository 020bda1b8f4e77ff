// A walk over a tree: structures, bit fields, a stack as a template, a device variable, assert and printf.
struct Packed {
    unsigned int kind : 3;
    int value : 12;
    unsigned int rest : 17;
};
struct Node {
    double weight;
    int child[2];
    unsigned char name[3];
};

__device__ int counter[4];

template <typename T, int N>
struct Stack {
    T items[N];
    int size = 0;
    __device__ void push(T item) { assert(size < N); items[size++] = item; }
    __device__ T pop() { return items[--size]; }
    __device__ bool empty() const { return size == 0; }
};

extern "C" __global__ void walk(const Node *nodes, const Packed *packed, double *weights, int *values, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Stack<int, 12> stack;
    stack.push(i);
    double sum = 0.0;
    long long started = clock64();
    int letters = 0;
    while (!stack.empty()) {
        Node node = nodes[stack.pop()];
        sum += node.weight;
        letters += node.name[0] - node.name[2];
        for (int side = 0; side < 2; side++)
            if (node.child[side] >= 0) stack.push(node.child[side]);
    }
    weights[i] = sum;
    Packed p = packed[i];
    p.value += p.kind;
    values[i] = p.value * 4 + (p.rest & 3) + letters + (clock64() < started);
    atomicAdd(&counter[i & 3], 1);
    if (i == 5) printf("node %d: %f\n", i, sum);
}

extern "C" __global__ void read_counter(int *out) { out[threadIdx.x] = counter[threadIdx.x]; }
