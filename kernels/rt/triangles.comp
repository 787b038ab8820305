// Makes the triangles of entries, one invocation per entry. That of entry i is in the plane of its value and is hit by rays from (y, z) with
// y <= i * step <= z: it has its right angle at ((i + 1/2) * step, (i - 1/2) * step) and reaches beyond all ends of ranges in the block. Blocks of
// 1 << block_shift entries, which have side 1, are in cells of a grid, two apart; a triangle reaches one block down and two up, as published.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "arrays.glsl"

layout(local_size_x = 256) in;

layout(push_constant, std430) uniform Arguments {
  Words planes;   // the first coordinate of each entry
  Output vertices;
  uint first;     // entry
  uint count;
  uint block_shift;
  uint first_cell;  // of block 0
  uint side;        // cells side by side in the grid
  float step;       // from an entry to the next
};

void put(uint vertex, uint x, float y, float z) {
  vertices.at[vertex * 3] = x;
  vertices.at[vertex * 3 + 1] = floatBitsToUint(y);
  vertices.at[vertex * 3 + 2] = floatBitsToUint(z);
}

void main() {
  uint number = gl_GlobalInvocationID.x;
  if (number >= count) return;
  uint entry = first + number, cell = first_cell + (entry >> block_shift);
  uint plane = planes.at[entry];
  float i = float(entry & ((1u << block_shift) - 1));
  float y = float(cell % side * 2), z = float(cell / side * 2);
  float right = y + (i + 0.5) * step, low = z + (i - 0.5) * step;
  put(number * 3, plane, right, low);
  put(number * 3 + 1, plane, right, z + 2);
  put(number * 3 + 2, plane, y - 1, low);
}
