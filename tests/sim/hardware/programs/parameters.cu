// Parameters of every kind: a structure by value, narrow integers, a flag, doubles, an array inside a structure.
struct Settings {
    char letter;
    short bias;
    float slope;
    long long big;
    unsigned char table[5];
    double fine;
};

extern "C" __global__ void combine(double *out, Settings s, bool negate, signed char small, unsigned short medium, long long wide, int n) {
    int i = threadIdx.x;
    if (i >= n) return;
    double value = s.letter + s.bias * 10 + s.slope * i + (double)s.big + s.table[i % 5] + s.fine;
    value += small - (double)medium + (double)(wide >> 3);
    out[i] = negate ? -value : value;
}
