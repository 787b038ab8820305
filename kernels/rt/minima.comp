// Computes the minima of chunks of 1 << shift entries, one invocation per chunk: a level from the one below.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "arrays.glsl"

layout(local_size_x = 256) in;

layout(push_constant, std430) uniform Arguments {
  Words from;
  Output to;
  uint entries;  // of `from`
  uint shift;
};

void main() {
  uint chunk = gl_GlobalInvocationID.x, first = chunk << shift;
  if (first >= entries) return;
  uint least = GREATEST;
  for (uint i = first; i < min(first + (1u << shift), entries); i++) least = min(least, from.at[i]);
  to.at[chunk] = least;
}
