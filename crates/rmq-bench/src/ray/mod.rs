//! Range minima by Vulkan's ray-tracing pipelines: RTXRMQ (Meneses et al., 2024), and the search of GPU-RMQ (CL) as
//! such a pipeline, without and with rays on its highest level. The shaders are in `kernels/rt`.
//!
//! Values are the bits of floats that are not negative, so bits have the floats' order.

mod acceleration;
mod arguments;
mod device;
mod error;
mod hardware;
mod layout;
pub mod measure;
mod memory;
mod pipeline;
mod search;
#[cfg(test)]
mod tests;
