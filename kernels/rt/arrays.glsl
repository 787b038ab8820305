// What all shaders share: arrays in the device's memory. Values are floats that are not negative, as their bits, which have the floats' order.
#extension GL_EXT_buffer_reference : require

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Words { uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Output { uint at[]; };

const uint GREATEST = ~0u;
