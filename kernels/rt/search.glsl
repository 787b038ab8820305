// What a search gets, as push constants: `SearchArguments` in crates/rmq-bench/src/ray/arguments.rs.
#extension GL_EXT_ray_tracing : require
#include "arrays.glsl"

const uint MAX_LEVELS = 8;

layout(push_constant, std430) uniform Search {
  Words values;
  Words minima;             // of the levels, or of the blocks
  Words left, right;        // inclusive bounds of the queries
  Output answers;
  uvec2 scene;              // the address of the triangles' acceleration structure
  uint queries;
  uint minima_from;         // triangles from this number on are those of minima, before it of values
  uint top;                 // the highest level
  uint block_shift;         // a block has 1 << block_shift values
  uint side;                // cells side by side in the grid
  float step;               // from an entry of a block to the next
  float minimum_step;       // from a minimum to the next, in the first cell
  float end;                // beyond all triangles
  uint level[MAX_LEVELS];   // where the entries of level k begin in `minima`
};

#ifdef RAYS
// What a ray hits first: the number of the triangle, and how far it is.
struct Hit {
  uint triangle;
  float distance;
};

layout(location = 0) rayPayloadEXT Hit hit;

// Sends a ray along the first axis, which hits the triangles of all entries i with from <= i <= to.
void send_ray(float from, float to) {
  traceRayEXT(accelerationStructureEXT(scene), gl_RayFlagsOpaqueEXT, 0xff, 0, 0, 0, vec3(0, from, to), 0, vec3(1, 0, 0), end, 0);
}
#endif
