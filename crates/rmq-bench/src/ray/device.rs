//! A Vulkan device with ray-tracing pipelines, its queue and its clock.

use std::cell::Cell;
use std::ffi::CStr;
use std::time::Instant;

use ash::{khr, vk};

use super::error::{VulkanError, failed};
use super::hardware::{RayHardware, ray_hardware};

/// What the device must have beside Vulkan 1.2.
const EXTENSIONS: [&CStr; 3] = [
    khr::acceleration_structure::NAME,
    khr::ray_tracing_pipeline::NAME,
    khr::deferred_host_operations::NAME,
];

/// How long the device may take for one submission, in nanoseconds.
const PATIENCE: u64 = 300_000_000_000;

/// An open device. Everything made on it borrows it.
pub struct Vulkan {
    // The loader's library must stay loaded.
    _entry: ash::Entry,
    instance: ash::Instance,
    pub device: ash::Device,
    pub acceleration: khr::acceleration_structure::Device,
    pub tracing: khr::ray_tracing_pipeline::Device,
    queue: vk::Queue,
    pool: vk::CommandPool,
    commands: vk::CommandBuffer,
    fence: vk::Fence,
    clock: vk::QueryPool,
    /// Seconds of a tick of the clock.
    tick: f64,
    /// The bits that the clock has.
    ticks: u64,
    pub memory: vk::PhysicalDeviceMemoryProperties,
    pub limits: Limits,
    pub name: String,
    pub hardware: RayHardware,
    allocated: Cell<u64>,
    peak: Cell<u64>,
}

/// What the device can do at most, and alignments.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub launch: u64,
    pub primitives: u64,
    pub handle_bytes: u64,
    pub handle_alignment: u64,
    pub table_alignment: u64,
    pub scratch_alignment: u64,
}

/// The seconds that work takes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    /// By the device's clock.
    pub device: f64,
    /// From before the submission until the host knows that it ended.
    pub wall: f64,
}

impl Times {
    /// Adds those of other work.
    pub fn add(&mut self, other: Self) {
        self.device += other.device;
        self.wall += other.wall;
    }
}

/// A device that may be opened.
struct Candidate {
    physical: vk::PhysicalDevice,
    family: u32,
    /// Bits of the family's clock.
    clock_bits: u32,
    properties: vk::PhysicalDeviceProperties,
}

impl Vulkan {
    /// Opens a device with ray-tracing pipelines; of several, one that is no CPU.
    pub fn open() -> Result<Self, VulkanError> {
        let unavailable = |why: String| VulkanError::Unavailable(why);
        // SAFETY: the loader's library has no other initialization.
        let entry = unsafe { ash::Entry::load() }
            .map_err(|error| unavailable(format!("no loader: {error}")))?;
        let application = vk::ApplicationInfo::default()
            .application_name(c"rmq-bench")
            .api_version(vk::API_VERSION_1_2);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: the info is valid.
        let instance = unsafe { entry.create_instance(&info, None) }
            .map_err(|error| unavailable(format!("no instance: {error}")))?;
        match Self::on(&instance) {
            Ok((candidate, device)) => Self::finish(entry, instance, &candidate, device),
            Err(error) => {
                // SAFETY: nothing made on it is left.
                unsafe { instance.destroy_instance(None) };
                Err(error)
            }
        }
    }

    /// Creates the logical device.
    fn on(instance: &ash::Instance) -> Result<(Candidate, ash::Device), VulkanError> {
        // SAFETY: the instance is alive, as in all calls with it.
        let devices = unsafe { instance.enumerate_physical_devices() };
        let devices = devices.map_err(failed("list devices"))?;
        let mut reasons = Vec::new();
        let mut candidates = Vec::new();
        for physical in devices {
            match candidate(instance, physical) {
                Ok(candidate) => candidates.push(candidate),
                Err(why) => reasons.push(why),
            }
        }
        let on_cpu = |one: &Candidate| one.properties.device_type == vk::PhysicalDeviceType::CPU;
        candidates.sort_by_key(on_cpu);
        let Some(candidate) = candidates.into_iter().next() else {
            let why = if reasons.is_empty() {
                "no device".to_owned()
            } else {
                reasons.join("; ")
            };
            return Err(VulkanError::Unavailable(why));
        };
        let queues = [vk::DeviceQueueCreateInfo::default()
            .queue_family_index(candidate.family)
            .queue_priorities(&[1.0])];
        let names = EXTENSIONS.map(CStr::as_ptr);
        let mut addresses =
            vk::PhysicalDeviceBufferDeviceAddressFeatures::default().buffer_device_address(true);
        let mut structures = vk::PhysicalDeviceAccelerationStructureFeaturesKHR::default()
            .acceleration_structure(true);
        let mut pipelines =
            vk::PhysicalDeviceRayTracingPipelineFeaturesKHR::default().ray_tracing_pipeline(true);
        let info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&names)
            .push_next(&mut addresses)
            .push_next(&mut structures)
            .push_next(&mut pipelines);
        // SAFETY: the device has these queues, extensions and features.
        let device = unsafe { instance.create_device(candidate.physical, &info, None) };
        Ok((candidate, device.map_err(failed("open the device"))?))
    }

    fn finish(
        entry: ash::Entry,
        instance: ash::Instance,
        candidate: &Candidate,
        device: ash::Device,
    ) -> Result<Self, VulkanError> {
        let mut structures = vk::PhysicalDeviceAccelerationStructurePropertiesKHR::default();
        let mut pipelines = vk::PhysicalDeviceRayTracingPipelinePropertiesKHR::default();
        let mut all = vk::PhysicalDeviceProperties2::default()
            .push_next(&mut structures)
            .push_next(&mut pipelines);
        // SAFETY: the device has both extensions.
        unsafe { instance.get_physical_device_properties2(candidate.physical, &mut all) };
        let limits = Limits {
            launch: pipelines.max_ray_dispatch_invocation_count.into(),
            primitives: structures.max_primitive_count,
            handle_bytes: pipelines.shader_group_handle_size.into(),
            handle_alignment: pipelines.shader_group_handle_alignment.into(),
            table_alignment: pipelines.shader_group_base_alignment.into(),
            scratch_alignment: structures
                .min_acceleration_structure_scratch_offset_alignment
                .into(),
        };
        // SAFETY: the instance is alive.
        let memory = unsafe { instance.get_physical_device_memory_properties(candidate.physical) };
        let pool = vk::CommandPoolCreateInfo::default()
            .queue_family_index(candidate.family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        let clock = vk::QueryPoolCreateInfo::default()
            .query_type(vk::QueryType::TIMESTAMP)
            .query_count(2);
        let fence = vk::FenceCreateInfo::default();
        // SAFETY: the infos are valid. A failure here leaks the device, after which the program reports it and ends.
        let (queue, pool, clock, fence) = unsafe {
            (
                device.get_device_queue(candidate.family, 0),
                (device.create_command_pool(&pool, None)).map_err(failed("make commands"))?,
                (device.create_query_pool(&clock, None)).map_err(failed("make a clock"))?,
                (device.create_fence(&fence, None)).map_err(failed("make a fence"))?,
            )
        };
        let commands = vk::CommandBufferAllocateInfo::default()
            .command_pool(pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        // SAFETY: the pool is the device's.
        let commands = unsafe { device.allocate_command_buffers(&commands) };
        let commands = commands.map_err(failed("make commands"))?[0];
        let properties = &candidate.properties;
        let name = device_name(properties);
        Ok(Self {
            acceleration: khr::acceleration_structure::Device::new(&instance, &device),
            tracing: khr::ray_tracing_pipeline::Device::new(&instance, &device),
            _entry: entry,
            instance,
            device,
            queue,
            pool,
            commands,
            fence,
            clock,
            ticks: u64::MAX >> (64 - candidate.clock_bits),
            tick: f64::from(properties.limits.timestamp_period) * 1e-9,
            memory,
            limits,
            hardware: ray_hardware(properties.vendor_id, properties.device_type, &name),
            name,
            allocated: Cell::new(0),
            peak: Cell::new(0),
        })
    }

    /// Records commands, runs them and waits for their end.
    pub fn run(&self, record: impl FnOnce(vk::CommandBuffer)) -> Result<Times, VulkanError> {
        let (device, commands) = (&self.device, self.commands);
        let begin = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        let buffers = [commands];
        let submit = [vk::SubmitInfo::default().command_buffers(&buffers)];
        let mut ticks = [0_u64; 2];
        let (top, bottom) = (
            vk::PipelineStageFlags::TOP_OF_PIPE,
            vk::PipelineStageFlags::BOTTOM_OF_PIPE,
        );
        let wait = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
        // SAFETY: the buffer is not in use, as each run waits for its end; all objects are the device's.
        unsafe {
            (device.begin_command_buffer(commands, &begin)).map_err(failed("record commands"))?;
            device.cmd_reset_query_pool(commands, self.clock, 0, 2);
            device.cmd_write_timestamp(commands, top, self.clock, 0);
            record(commands);
            self.barrier(commands);
            device.cmd_write_timestamp(commands, bottom, self.clock, 1);
            (device.end_command_buffer(commands)).map_err(failed("record commands"))?;
            let start = Instant::now();
            (device.queue_submit(self.queue, &submit, self.fence)).map_err(failed("run"))?;
            (device.wait_for_fences(&[self.fence], true, PATIENCE)).map_err(failed("run"))?;
            let wall = start.elapsed().as_secs_f64();
            (device.reset_fences(&[self.fence])).map_err(failed("run"))?;
            (device.get_query_pool_results(self.clock, 0, &mut ticks, wait))
                .map_err(failed("read the clock"))?;
            Ok(Times {
                device: (ticks[1].wrapping_sub(ticks[0]) & self.ticks) as f64 * self.tick,
                wall,
            })
        }
    }

    /// Makes what the commands before write visible to those after, and to the host.
    pub fn barrier(&self, commands: vk::CommandBuffer) {
        let stages = vk::PipelineStageFlags::ALL_COMMANDS;
        let barrier = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::MEMORY_WRITE)
            .dst_access_mask(
                vk::AccessFlags::MEMORY_READ
                    | vk::AccessFlags::MEMORY_WRITE
                    | vk::AccessFlags::HOST_READ,
            )];
        // SAFETY: the commands are being recorded.
        unsafe {
            self.device.cmd_pipeline_barrier(
                commands,
                stages,
                stages | vk::PipelineStageFlags::HOST,
                vk::DependencyFlags::empty(),
                &barrier,
                &[],
                &[],
            );
        }
    }

    /// Counts memory that was allocated.
    pub fn count_allocated(&self, bytes: u64) {
        self.allocated.set(self.allocated.get() + bytes);
        self.peak.set(self.peak.get().max(self.allocated.get()));
    }

    /// Counts memory that was freed.
    pub fn count_freed(&self, bytes: u64) {
        self.allocated.set(self.allocated.get() - bytes);
    }

    /// The bytes that are allocated now.
    pub fn allocated(&self) -> u64 {
        self.allocated.get()
    }

    /// The most bytes that were allocated since this was called before; begins anew.
    pub fn take_peak(&self) -> u64 {
        self.peak.replace(self.allocated.get())
    }

    /// Describes the device in one line.
    pub fn describe(&self) -> String {
        format!("{}, {}", self.name, self.hardware.describe())
    }
}

impl Drop for Vulkan {
    fn drop(&mut self) {
        // SAFETY: nothing runs, as each run waits for its end, and what borrows the device is gone.
        unsafe {
            self.device.destroy_fence(self.fence, None);
            self.device.destroy_query_pool(self.clock, None);
            self.device.destroy_command_pool(self.pool, None);
            self.device.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}

fn device_name(properties: &vk::PhysicalDeviceProperties) -> String {
    let name = properties.device_name_as_c_str().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Examines a device; says what it lacks.
fn candidate(instance: &ash::Instance, physical: vk::PhysicalDevice) -> Result<Candidate, String> {
    // SAFETY: the instance is alive.
    let (properties, extensions, families) = unsafe {
        (
            instance.get_physical_device_properties(physical),
            (instance.enumerate_device_extension_properties(physical)).unwrap_or_default(),
            instance.get_physical_device_queue_family_properties(physical),
        )
    };
    let name = device_name(&properties);
    if properties.api_version < vk::API_VERSION_1_2 {
        return Err(format!("{name} has no Vulkan 1.2"));
    }
    for wanted in EXTENSIONS {
        let mut names = extensions.iter().map(|one| one.extension_name_as_c_str());
        if !names.any(|name| name == Ok(wanted)) {
            return Err(format!("{name} has no {}", wanted.to_string_lossy()));
        }
    }
    let mut addresses = vk::PhysicalDeviceBufferDeviceAddressFeatures::default();
    let mut structures = vk::PhysicalDeviceAccelerationStructureFeaturesKHR::default();
    let mut pipelines = vk::PhysicalDeviceRayTracingPipelineFeaturesKHR::default();
    let mut features = vk::PhysicalDeviceFeatures2::default()
        .push_next(&mut addresses)
        .push_next(&mut structures)
        .push_next(&mut pipelines);
    // SAFETY: as above; the device has the extensions.
    unsafe { instance.get_physical_device_features2(physical, &mut features) };
    let present = [
        addresses.buffer_device_address,
        structures.acceleration_structure,
        pipelines.ray_tracing_pipeline,
    ];
    if present.contains(&vk::FALSE) {
        return Err(format!("{name} does not switch ray tracing on"));
    }
    let suits = |family: &vk::QueueFamilyProperties| {
        family.queue_flags.contains(vk::QueueFlags::COMPUTE) && family.timestamp_valid_bits > 0
    };
    match families.iter().position(suits) {
        Some(family) => Ok(Candidate {
            physical,
            family: family as u32,
            clock_bits: families[family].timestamp_valid_bits,
            properties,
        }),
        None => Err(format!("{name} has no compute queue with a clock")),
    }
}
