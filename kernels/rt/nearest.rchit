// Returns the triangle that the ray hits first. Triangles of an instance are numbered from its custom index, in units of 1024, on.
#version 460
#extension GL_EXT_ray_tracing : require

struct Hit {
  uint triangle;
  float distance;
};

layout(location = 0) rayPayloadInEXT Hit hit;

void main() {
  hit.triangle = gl_InstanceCustomIndexEXT * 1024 + gl_PrimitiveID;
  hit.distance = gl_HitTEXT;
}
