//! Which devices trace rays in hardware. Vulkan does not say, so it is told by their names.

use ash::vk;

/// How a device traces rays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RayHardware {
    /// Units of their own, such as RT cores.
    Units,
    /// Software: ordinary multiprocessors, or the CPU.
    None,
    Unknown,
}

impl RayHardware {
    /// Describes it for reports.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Units => "traces rays in hardware",
            Self::None => "has no ray-tracing cores: its driver traces rays in software",
            Self::Unknown => "may have ray-tracing cores or not",
        }
    }
}

const NVIDIA: u32 = 0x10DE;

/// NVIDIA's data-center and older cards without RT cores, by a word of their names.
const WITHOUT: [&str; 22] = [
    "A100", "A800", "A30", "H100", "H200", "H800", "H20", "GH200", "B100", "B200", "B300", "GB200",
    "GB300", "V100", "V100S", "P100", "P40", "P4", "GTX", "GV100", "K80", "M60",
];

/// Those with RT cores.
const WITH: [&str; 12] = [
    "RTX", "T4", "T10", "A2", "A10", "A10G", "A16", "A40", "L2", "L4", "L40", "L40S",
];

/// Tells whether a device has ray-tracing cores.
pub fn ray_hardware(vendor: u32, kind: vk::PhysicalDeviceType, name: &str) -> RayHardware {
    if kind == vk::PhysicalDeviceType::CPU {
        return RayHardware::None;
    }
    if vendor != NVIDIA {
        return RayHardware::Unknown;
    }
    let has = |known: &[&str]| name.split([' ', '-']).any(|word| known.contains(&word));
    match (has(&WITH), has(&WITHOUT)) {
        (true, _) => RayHardware::Units,
        (false, true) => RayHardware::None,
        (false, false) => RayHardware::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_told_by_their_names() {
        let told = |name| ray_hardware(NVIDIA, vk::PhysicalDeviceType::DISCRETE_GPU, name);
        for name in [
            "NVIDIA H100 80GB HBM3",
            "NVIDIA H200",
            "NVIDIA A100-SXM4-40GB",
        ] {
            assert_eq!(told(name), RayHardware::None, "{name}");
        }
        for name in [
            "NVIDIA L4",
            "NVIDIA GeForce RTX 4090",
            "NVIDIA A10",
            "Tesla T4",
        ] {
            assert_eq!(told(name), RayHardware::Units, "{name}");
        }
        assert_eq!(told("NVIDIA Graphics Device"), RayHardware::Unknown);
        let cpu = vk::PhysicalDeviceType::CPU;
        assert_eq!(ray_hardware(0x10005, cpu, "llvmpipe"), RayHardware::None);
    }
}
