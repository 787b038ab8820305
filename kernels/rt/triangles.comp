// Makes the triangles of entries, one invocation per entry. That of entry i is in the plane of its value and is hit by rays from (y, z) with
// y <= i <= z: it has its right angle at (i + 1/2, i - 1/2) and reaches beyond all ends of ranges in the block. Blocks of 1 << block_shift entries are
// cells of a grid, two blocks apart; a triangle reaches one block down and two up, as published.
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
  uint side;      // blocks side by side in the grid
  float above;    // subtracted from the second coordinate
};

void put(uint vertex, uint x, float y, float z) {
  vertices.at[vertex * 3] = x;
  vertices.at[vertex * 3 + 1] = floatBitsToUint(y);
  vertices.at[vertex * 3 + 2] = floatBitsToUint(z - above);
}

void main() {
  uint number = gl_GlobalInvocationID.x;
  if (number >= count) return;
  uint entry = first + number, block = entry >> block_shift;
  uint plane = planes.at[entry];
  float size = float(1u << block_shift), i = float(entry & ((1u << block_shift) - 1));
  float y = float(block % side) * 2 * size, z = float(block / side) * 2 * size;
  put(number * 3, plane, y + i + 0.5, z + i - 0.5);
  put(number * 3 + 1, plane, y + i + 0.5, z + 2 * size - 0.5);
  put(number * 3 + 2, plane, y - size, z + i - 0.5);
}
