// A tile of x in shared memory: 32 inputs a row, as four pieces of 16 bytes.
#pragma once

constexpr int ROW_PIECES = 4;                   // 32 halves
constexpr int SWIZZLE_PERIOD = 8 * ROW_PIECES;  // pieces after which the order of a row's pieces repeats: eight rows

// Where piece p of a row lies. Two rows fill the 32 banks once: in plain order, piece p of every second row would meet
// the same banks, and the tensor cores want piece p of eight rows. Exchanging pieces from one pair of rows to the next
// spreads them over all banks.
__device__ __forceinline__ int swizzled(int row, int piece) { return row * ROW_PIECES + (piece ^ ((row >> 1) & 3)); }
