//! Acceleration structures of triangles: built in parts, compacted, and put together under one at the top.

use ash::vk;

use super::device::{Times, Vulkan};
use super::error::{VulkanError, failed};
use super::memory::{Buffer, Purpose};

/// Bytes of a triangle: three corners of three floats.
pub const TRIANGLE_BYTES: u64 = 36;

/// Triangles are numbered from a multiple of this on in each part; the shader `nearest.rchit` has the same number.
pub const PART_UNIT: u64 = 1024;

/// How acceleration structures are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Building {
    /// As RTXRMQ is published: so that triangles may move later, for which a device does not split them.
    Updatable,
    /// Then copied to as much memory as they need.
    Compacted,
}

impl Building {
    fn flags(self) -> vk::BuildAccelerationStructureFlagsKHR {
        vk::BuildAccelerationStructureFlagsKHR::PREFER_FAST_TRACE
            | match self {
                Self::Updatable => vk::BuildAccelerationStructureFlagsKHR::ALLOW_UPDATE,
                Self::Compacted => vk::BuildAccelerationStructureFlagsKHR::ALLOW_COMPACTION,
            }
    }
}

/// An acceleration structure with its memory.
struct Structure<'v> {
    vulkan: &'v Vulkan,
    handle: vk::AccelerationStructureKHR,
    buffer: Buffer<'v>,
}

impl Drop for Structure<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing that runs uses it, as each run is waited for. Its memory is freed after it.
        unsafe {
            (self.vulkan.acceleration).destroy_acceleration_structure(self.handle, None);
        }
    }
}

/// A part of a scene, and the number of its first triangle.
struct Part<'v> {
    structure: Structure<'v>,
    first: u64,
}

/// All triangles of a search, under one structure.
pub struct Scene<'v> {
    _top: Structure<'v>,
    _parts: Vec<Part<'v>>,
    /// Where the shaders find it.
    pub address: vk::DeviceAddress,
}

/// Builds the parts of a scene, with memory that is used for one after another.
pub struct SceneBuilder<'v> {
    vulkan: &'v Vulkan,
    building: Building,
    /// The corners of a part's triangles.
    pub corners: Buffer<'v>,
    scratch: Option<Buffer<'v>>,
    compacted: vk::QueryPool,
    parts: Vec<Part<'v>>,
    pub times: Times,
    /// The bytes of all parts before they were compacted.
    pub built_bytes: u64,
    /// The bytes of all parts.
    pub compacted_bytes: u64,
}

impl Drop for SceneBuilder<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing that runs uses it.
        unsafe { (self.vulkan.device).destroy_query_pool(self.compacted, None) };
    }
}

impl<'v> SceneBuilder<'v> {
    /// Begins a scene whose parts have at most this many triangles.
    pub fn new(
        vulkan: &'v Vulkan,
        building: Building,
        triangles: u64,
    ) -> Result<Self, VulkanError> {
        let corners = vulkan.buffer(triangles * TRIANGLE_BYTES, Purpose::Array)?;
        let info = vk::QueryPoolCreateInfo::default()
            .query_type(vk::QueryType::ACCELERATION_STRUCTURE_COMPACTED_SIZE_KHR)
            .query_count(1);
        // SAFETY: the info is valid.
        let compacted = unsafe { vulkan.device.create_query_pool(&info, None) };
        Ok(Self {
            vulkan,
            building,
            corners,
            scratch: None,
            compacted: compacted.map_err(failed("make a query"))?,
            parts: Vec::new(),
            times: Times::default(),
            built_bytes: 0,
            compacted_bytes: 0,
        })
    }

    /// Adds a part of `triangles`, numbered from `first` on, after `fill` has recorded what writes their corners.
    ///
    /// # Panics
    /// Where `first` is no multiple of [`PART_UNIT`], or there are more triangles than the builder has memory for.
    pub fn add(
        &mut self,
        first: u64,
        triangles: u32,
        fill: impl FnOnce(vk::CommandBuffer, &Buffer<'v>),
    ) -> Result<(), VulkanError> {
        assert!(first.is_multiple_of(PART_UNIT));
        assert!(u64::from(triangles) * TRIANGLE_BYTES <= self.corners.bytes);
        let vulkan = self.vulkan;
        let data = vk::AccelerationStructureGeometryTrianglesDataKHR::default()
            .vertex_format(vk::Format::R32G32B32_SFLOAT)
            .vertex_data(vk::DeviceOrHostAddressConstKHR {
                device_address: self.corners.address,
            })
            .vertex_stride(12)
            .max_vertex(triangles * 3 - 1)
            .index_type(vk::IndexType::NONE_KHR);
        let geometry = vk::AccelerationStructureGeometryKHR::default()
            .geometry_type(vk::GeometryTypeKHR::TRIANGLES)
            .geometry(vk::AccelerationStructureGeometryDataKHR { triangles: data })
            .flags(vk::GeometryFlagsKHR::OPAQUE);
        let kind = vk::AccelerationStructureTypeKHR::BOTTOM_LEVEL;
        let (built, times) = self.build(&geometry, kind, triangles, |commands, corners| {
            fill(commands, corners);
            vulkan.barrier(commands);
        })?;
        self.times.add(times);
        self.built_bytes += built.buffer.bytes;
        let structure = match self.building {
            Building::Updatable => built,
            Building::Compacted => self.compact(&built)?,
        };
        self.compacted_bytes += structure.buffer.bytes;
        self.parts.push(Part { structure, first });
        Ok(())
    }

    /// Builds the structure over all parts.
    pub fn finish(mut self) -> Result<(Scene<'v>, Times), VulkanError> {
        let vulkan = self.vulkan;
        let instances: Vec<_> = self.parts.iter().map(instance).collect();
        let bytes = size_of_val(instances.as_slice());
        let (array, staging) = (
            vulkan.buffer(bytes as u64, Purpose::Array)?,
            vulkan.buffer(bytes as u64, Purpose::Staging)?,
        );
        // SAFETY: the instances are `repr(C)` without padding.
        staging.write(unsafe { std::slice::from_raw_parts(instances.as_ptr().cast(), bytes) });
        let data = vk::AccelerationStructureGeometryInstancesDataKHR::default().data(
            vk::DeviceOrHostAddressConstKHR {
                device_address: array.address,
            },
        );
        let geometry = vk::AccelerationStructureGeometryKHR::default()
            .geometry_type(vk::GeometryTypeKHR::INSTANCES)
            .geometry(vk::AccelerationStructureGeometryDataKHR { instances: data })
            .flags(vk::GeometryFlagsKHR::OPAQUE);
        let copy = [vk::BufferCopy::default().size(bytes as u64)];
        let kind = vk::AccelerationStructureTypeKHR::TOP_LEVEL;
        let count = instances.len() as u32;
        let (top, times) = self.build(&geometry, kind, count, |commands, _| {
            // SAFETY: both are that long.
            unsafe {
                (vulkan.device).cmd_copy_buffer(commands, staging.handle, array.handle, &copy);
            }
            vulkan.barrier(commands);
        })?;
        self.times.add(times);
        let scene = Scene {
            address: top.address(),
            _top: top,
            _parts: std::mem::take(&mut self.parts),
        };
        Ok((scene, self.times))
    }

    /// Builds one structure, after what `before` records.
    fn build(
        &mut self,
        geometry: &vk::AccelerationStructureGeometryKHR<'_>,
        kind: vk::AccelerationStructureTypeKHR,
        primitives: u32,
        before: impl FnOnce(vk::CommandBuffer, &Buffer<'v>),
    ) -> Result<(Structure<'v>, Times), VulkanError> {
        let vulkan = self.vulkan;
        let flags = match kind {
            vk::AccelerationStructureTypeKHR::BOTTOM_LEVEL => self.building.flags(),
            _ => vk::BuildAccelerationStructureFlagsKHR::PREFER_FAST_TRACE,
        };
        let geometries = std::slice::from_ref(geometry);
        let mut info = vk::AccelerationStructureBuildGeometryInfoKHR::default()
            .ty(kind)
            .flags(flags)
            .mode(vk::BuildAccelerationStructureModeKHR::BUILD)
            .geometries(geometries);
        let mut sizes = vk::AccelerationStructureBuildSizesInfoKHR::default();
        let on = vk::AccelerationStructureBuildTypeKHR::DEVICE;
        // SAFETY: the info has one geometry.
        unsafe {
            (vulkan.acceleration).get_acceleration_structure_build_sizes(
                on,
                &info,
                &[primitives],
                &mut sizes,
            );
        }
        let structure = vulkan.structure(kind, sizes.acceleration_structure_size)?;
        let alignment = vulkan.limits.scratch_alignment.max(1);
        let wanted = sizes.build_scratch_size + alignment;
        if self
            .scratch
            .as_ref()
            .is_none_or(|scratch| scratch.bytes < wanted)
        {
            self.scratch = None;
            self.scratch = Some(vulkan.buffer(wanted, Purpose::Array)?);
        }
        let scratch = self.scratch.as_ref().map_or(0, |scratch| scratch.address);
        info.dst_acceleration_structure = structure.handle;
        info.scratch_data = vk::DeviceOrHostAddressKHR {
            device_address: scratch.next_multiple_of(alignment),
        };
        let range =
            [vk::AccelerationStructureBuildRangeInfoKHR::default().primitive_count(primitives)];
        let compacts = flags.contains(vk::BuildAccelerationStructureFlagsKHR::ALLOW_COMPACTION);
        let size = vk::QueryType::ACCELERATION_STRUCTURE_COMPACTED_SIZE_KHR;
        let times = vulkan.run(|commands| {
            before(commands, &self.corners);
            // SAFETY: the memory is as long as the device asked for, and the geometry is in place.
            unsafe {
                (vulkan.acceleration).cmd_build_acceleration_structures(
                    commands,
                    &[info],
                    &[&range],
                );
                vulkan.barrier(commands);
                if compacts {
                    (vulkan.device).cmd_reset_query_pool(commands, self.compacted, 0, 1);
                    (vulkan.acceleration).cmd_write_acceleration_structures_properties(
                        commands,
                        &[structure.handle],
                        size,
                        self.compacted,
                        0,
                    );
                }
            }
        })?;
        Ok((structure, times))
    }

    /// Copies a structure, just built, to as much memory as it needs.
    fn compact(&mut self, built: &Structure<'v>) -> Result<Structure<'v>, VulkanError> {
        let vulkan = self.vulkan;
        let mut bytes = [0_u64];
        let wait = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
        // SAFETY: the last run wrote the query.
        unsafe {
            (vulkan.device)
                .get_query_pool_results(self.compacted, 0, &mut bytes, wait)
                .map_err(failed("ask for a compacted size"))?;
        }
        let kind = vk::AccelerationStructureTypeKHR::BOTTOM_LEVEL;
        let compacted = vulkan.structure(kind, bytes[0])?;
        let info = vk::CopyAccelerationStructureInfoKHR::default()
            .src(built.handle)
            .dst(compacted.handle)
            .mode(vk::CopyAccelerationStructureModeKHR::COMPACT);
        // SAFETY: the new one is as long as the device asked for.
        self.times.add(vulkan.run(|commands| unsafe {
            (vulkan.acceleration).cmd_copy_acceleration_structure(commands, &info);
        })?);
        Ok(compacted)
    }
}

impl Structure<'_> {
    fn address(&self) -> vk::DeviceAddress {
        let info = vk::AccelerationStructureDeviceAddressInfoKHR::default()
            .acceleration_structure(self.handle);
        // SAFETY: the structure is the device's.
        unsafe { (self.vulkan.acceleration).get_acceleration_structure_device_address(&info) }
    }
}

impl Vulkan {
    fn structure(
        &self,
        kind: vk::AccelerationStructureTypeKHR,
        bytes: u64,
    ) -> Result<Structure<'_>, VulkanError> {
        let buffer = self.buffer(bytes, Purpose::Structure)?;
        let info = vk::AccelerationStructureCreateInfoKHR::default()
            .buffer(buffer.handle)
            .size(bytes)
            .ty(kind);
        // SAFETY: the buffer is that long.
        let handle = unsafe { (self.acceleration).create_acceleration_structure(&info, None) };
        Ok(Structure {
            vulkan: self,
            handle: handle.map_err(failed("make an acceleration structure"))?,
            buffer,
        })
    }
}

/// Places a part where it is.
fn instance(part: &Part<'_>) -> vk::AccelerationStructureInstanceKHR {
    let identity = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0];
    let both_sides = vk::GeometryInstanceFlagsKHR::TRIANGLE_FACING_CULL_DISABLE;
    vk::AccelerationStructureInstanceKHR {
        transform: vk::TransformMatrixKHR { matrix: identity },
        instance_custom_index_and_mask: vk::Packed24_8::new((part.first / PART_UNIT) as u32, 0xff),
        instance_shader_binding_table_record_offset_and_flags: vk::Packed24_8::new(
            0,
            both_sides.as_raw() as u8,
        ),
        acceleration_structure_reference: vk::AccelerationStructureReferenceKHR {
            device_handle: part.structure.address(),
        },
    }
}
