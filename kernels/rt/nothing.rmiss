// Returns no triangle.
#version 460
#extension GL_EXT_ray_tracing : require

struct Hit {
  uint triangle;
  float distance;
};

layout(location = 0) rayPayloadInEXT Hit hit;

void main() {
  hit.triangle = ~0u;
  hit.distance = gl_RayTmaxEXT;
}
