//! Why something can't be measured with Vulkan.

use std::error::Error;
use std::fmt;

use ash::vk;

/// An error of Vulkan or of its search.
#[derive(Debug)]
pub enum VulkanError {
    /// There is no loader, no device, or none with ray-tracing pipelines.
    Unavailable(String),
    /// The device has no memory left for this many bytes.
    Memory { bytes: u64 },
    /// The column is too long, or has too many blocks, for the layout or for the device.
    Unsupported(String),
    /// A call failed.
    Failed {
        what: &'static str,
        result: vk::Result,
    },
}

impl fmt::Display for VulkanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(why) => write!(f, "no Vulkan ray tracing ({why})"),
            Self::Memory { bytes } => write!(f, "the device has no {bytes} bytes of memory left"),
            Self::Unsupported(what) => f.write_str(what),
            Self::Failed { what, result } => write!(f, "Vulkan can't {what}: {result}"),
        }
    }
}

impl Error for VulkanError {}

/// Says what failed.
pub fn failed(what: &'static str) -> impl FnOnce(vk::Result) -> VulkanError {
    move |result| VulkanError::Failed { what, result }
}
