// c = a + b, one element for each thread. Try it:
//
//   labkit sim examples/add.cu --grid 4 --block 256 --arg f32:1000=random --arg f32:1000=arange \
//       --arg 'out f32:1000' --arg 1000 --annotate
//
// Then delete "if (i < n)": 4 blocks of 256 threads are 24 more than there are elements.
extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
