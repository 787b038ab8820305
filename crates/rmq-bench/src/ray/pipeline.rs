//! Pipelines of compute shaders and of ray-tracing shaders. All get their arguments as push constants.

use std::io::Cursor;

use ash::vk;

use super::device::Vulkan;
use super::error::{VulkanError, failed};
use super::memory::{Buffer, Purpose};

/// The stages that get push constants.
const STAGES: vk::ShaderStageFlags = vk::ShaderStageFlags::from_raw(
    vk::ShaderStageFlags::COMPUTE.as_raw() | vk::ShaderStageFlags::RAYGEN_KHR.as_raw(),
);

/// The bytes of push constants that all devices have.
const PUSHED: u32 = 128;

/// Invocations of a work group.
const LOCAL_SIZE: u32 = 256;

macro_rules! spirv {
    ($name:literal) => {
        include_bytes!(concat!("../../../../kernels/rt/spirv/", $name, ".spv"))
    };
}

/// The SPIR-V of a shader.
pub type Shader = &'static [u8];

pub const RTXRMQ: Shader = spirv!("rtxrmq");
pub const LEVELS: Shader = spirv!("levels");
pub const LEVELS_RAYS: Shader = spirv!("levels_rays");
pub const MINIMA: Shader = spirv!("minima");
pub const TRIANGLES: Shader = spirv!("triangles");
const NEAREST: Shader = spirv!("nearest");
const NOTHING: Shader = spirv!("nothing");

/// A pipeline with its layout.
pub struct Pipeline<'v> {
    vulkan: &'v Vulkan,
    handle: vk::Pipeline,
    layout: vk::PipelineLayout,
}

impl Drop for Pipeline<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing that runs uses it, as each run is waited for.
        unsafe {
            self.vulkan.device.destroy_pipeline(self.handle, None);
            (self.vulkan.device).destroy_pipeline_layout(self.layout, None);
        }
    }
}

/// A ray-tracing pipeline with the table of its shaders.
pub struct RayPipeline<'v> {
    pipeline: Pipeline<'v>,
    _table: Buffer<'v>,
    generate: vk::StridedDeviceAddressRegionKHR,
    miss: vk::StridedDeviceAddressRegionKHR,
    hit: vk::StridedDeviceAddressRegionKHR,
}

/// Arguments of a shader, a struct with the layout of its push constants.
///
/// # Safety
/// The struct is `repr(C)`, has no padding and at most 128 bytes, a multiple of 4.
pub unsafe trait Arguments: Copy {
    /// Their bytes.
    fn bytes(&self) -> &[u8] {
        // SAFETY: there is no padding.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

impl Vulkan {
    fn module(&self, shader: Shader) -> Result<vk::ShaderModule, VulkanError> {
        let what = "load a shader";
        let words = ash::util::read_spv(&mut Cursor::new(shader));
        let words = words.map_err(|error| VulkanError::Unsupported(error.to_string()))?;
        let info = vk::ShaderModuleCreateInfo::default().code(&words);
        // SAFETY: the code was validated when it was compiled.
        unsafe { self.device.create_shader_module(&info, None) }.map_err(failed(what))
    }

    /// Makes a pipeline of modules, which are not needed afterwards.
    fn pipeline_of(
        &self,
        shaders: &[Shader],
        make: impl FnOnce(&[vk::ShaderModule], vk::PipelineLayout) -> Result<vk::Pipeline, vk::Result>,
    ) -> Result<Pipeline<'_>, VulkanError> {
        let range = [vk::PushConstantRange::default()
            .stage_flags(STAGES)
            .size(PUSHED)];
        let info = vk::PipelineLayoutCreateInfo::default().push_constant_ranges(&range);
        // SAFETY: the info is valid.
        let layout = unsafe { self.device.create_pipeline_layout(&info, None) };
        let mut pipeline = Pipeline {
            vulkan: self,
            handle: vk::Pipeline::null(),
            layout: layout.map_err(failed("make a pipeline"))?,
        };
        let modules = shaders.iter().map(|shader| self.module(shader));
        let modules = modules.collect::<Result<Vec<_>, _>>()?;
        let handle = make(&modules, pipeline.layout);
        for module in modules {
            // SAFETY: pipelines keep what they need of it.
            unsafe { self.device.destroy_shader_module(module, None) };
        }
        pipeline.handle = handle.map_err(failed("make a pipeline"))?;
        Ok(pipeline)
    }

    /// Makes a pipeline of a compute shader.
    pub fn compute_pipeline(&self, shader: Shader) -> Result<Pipeline<'_>, VulkanError> {
        self.pipeline_of(&[shader], |modules, layout| {
            let stage = stage(vk::ShaderStageFlags::COMPUTE, modules[0]);
            let info = [vk::ComputePipelineCreateInfo::default()
                .stage(stage)
                .layout(layout)];
            let cache = vk::PipelineCache::null();
            // SAFETY: the infos are valid.
            let made = unsafe { self.device.create_compute_pipelines(cache, &info, None) };
            made.map(|made| made[0]).map_err(|(_, result)| result)
        })
    }

    /// Makes a ray-tracing pipeline of a shader that generates rays, or none unless `rays`.
    pub fn ray_pipeline(&self, shader: Shader, rays: bool) -> Result<RayPipeline<'_>, VulkanError> {
        let shaders = [shader, NOTHING, NEAREST];
        let shaders = if rays { &shaders } else { &shaders[..1] };
        let pipeline = self.pipeline_of(shaders, |modules, layout| {
            let kinds = [
                vk::ShaderStageFlags::RAYGEN_KHR,
                vk::ShaderStageFlags::MISS_KHR,
                vk::ShaderStageFlags::CLOSEST_HIT_KHR,
            ];
            let stages: Vec<_> = kinds
                .iter()
                .zip(modules)
                .map(|(kind, module)| stage(*kind, *module))
                .collect();
            let unused = vk::RayTracingShaderGroupCreateInfoKHR::default()
                .general_shader(vk::SHADER_UNUSED_KHR)
                .closest_hit_shader(vk::SHADER_UNUSED_KHR)
                .any_hit_shader(vk::SHADER_UNUSED_KHR)
                .intersection_shader(vk::SHADER_UNUSED_KHR);
            let general = unused.ty(vk::RayTracingShaderGroupTypeKHR::GENERAL);
            let hit = unused.ty(vk::RayTracingShaderGroupTypeKHR::TRIANGLES_HIT_GROUP);
            let groups = [
                general.general_shader(0),
                general.general_shader(1),
                hit.closest_hit_shader(2),
            ];
            let info = [vk::RayTracingPipelineCreateInfoKHR::default()
                .stages(&stages)
                .groups(&groups[..stages.len()])
                .max_pipeline_ray_recursion_depth(u32::from(rays))
                .layout(layout)];
            let (deferred, cache) = (vk::DeferredOperationKHR::null(), vk::PipelineCache::null());
            // SAFETY: the infos are valid.
            let made = unsafe {
                (self.tracing).create_ray_tracing_pipelines(deferred, cache, &info, None)
            };
            made.map(|made| made[0]).map_err(|(_, result)| result)
        })?;
        self.with_table(pipeline, shaders.len() as u32)
    }

    /// Fills the table of the shaders: each in a region of its own.
    fn with_table<'v>(
        &'v self,
        pipeline: Pipeline<'v>,
        groups: u32,
    ) -> Result<RayPipeline<'v>, VulkanError> {
        let limits = self.limits;
        let bytes = limits.handle_bytes as usize;
        // SAFETY: the pipeline has this many groups.
        let handles = unsafe {
            (self.tracing).get_ray_tracing_shader_group_handles(
                pipeline.handle,
                0,
                groups,
                groups as usize * bytes,
            )
        };
        let handles = handles.map_err(failed("find the pipeline's shaders"))?;
        let stride = limits
            .handle_bytes
            .next_multiple_of(limits.handle_alignment);
        let region = stride.next_multiple_of(limits.table_alignment);
        let table = self.buffer(region * (u64::from(groups) + 1), Purpose::Table)?;
        let start = table.address.next_multiple_of(limits.table_alignment);
        let mut contents = vec![0; table.bytes as usize];
        let place = |group: u32| start + u64::from(group) * region;
        for (group, handle) in handles.chunks(bytes).enumerate() {
            let at = (place(group as u32) - table.address) as usize;
            contents[at..at + bytes].copy_from_slice(handle);
        }
        let words = contents.chunks_exact(4);
        let words: Vec<_> = words
            .map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")))
            .collect();
        self.write(&table, &words)?;
        let at = |group: u32| {
            let none = vk::StridedDeviceAddressRegionKHR::default();
            if group >= groups {
                return none;
            }
            none.device_address(place(group))
                .stride(stride)
                .size(stride)
        };
        Ok(RayPipeline {
            pipeline,
            generate: at(0),
            miss: at(1),
            hit: at(2),
            _table: table,
        })
    }

    /// Records a compute shader with at least this many invocations.
    pub fn dispatch<A: Arguments>(
        &self,
        commands: vk::CommandBuffer,
        pipeline: &Pipeline<'_>,
        arguments: &A,
        invocations: u32,
    ) {
        let point = vk::PipelineBindPoint::COMPUTE;
        // SAFETY: the arguments are the shader's, which checks the number of its invocation.
        unsafe {
            self.bind(commands, pipeline, point, arguments);
            let groups = invocations.div_ceil(LOCAL_SIZE);
            self.device.cmd_dispatch(commands, groups, 1, 1);
        }
    }

    /// Records a ray-tracing pipeline with `width` launch indices.
    pub fn trace<A: Arguments>(
        &self,
        commands: vk::CommandBuffer,
        pipeline: &RayPipeline<'_>,
        arguments: &A,
        width: u32,
    ) {
        let point = vk::PipelineBindPoint::RAY_TRACING_KHR;
        let callable = vk::StridedDeviceAddressRegionKHR::default();
        let (generate, miss, hit) = (&pipeline.generate, &pipeline.miss, &pipeline.hit);
        // SAFETY: the arguments are the shader's, which checks the number of its launch index; the table has its
        // shaders.
        unsafe {
            self.bind(commands, &pipeline.pipeline, point, arguments);
            (self.tracing).cmd_trace_rays(commands, generate, miss, hit, &callable, width, 1, 1);
        }
    }

    /// # Safety
    /// The commands are being recorded, the arguments are those of the pipeline's shader.
    unsafe fn bind<A: Arguments>(
        &self,
        commands: vk::CommandBuffer,
        pipeline: &Pipeline<'_>,
        point: vk::PipelineBindPoint,
        arguments: &A,
    ) {
        // SAFETY: as above.
        unsafe {
            (self.device).cmd_bind_pipeline(commands, point, pipeline.handle);
            (self.device).cmd_push_constants(
                commands,
                pipeline.layout,
                STAGES,
                0,
                arguments.bytes(),
            );
        }
    }
}

fn stage<'a>(
    kind: vk::ShaderStageFlags,
    module: vk::ShaderModule,
) -> vk::PipelineShaderStageCreateInfo<'a> {
    vk::PipelineShaderStageCreateInfo::default()
        .stage(kind)
        .module(module)
        .name(c"main")
}
