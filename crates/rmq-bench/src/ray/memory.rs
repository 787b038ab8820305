//! Memory of the device, and copies from and to the host.

use ash::vk;

use super::device::Vulkan;
use super::error::{VulkanError, failed};

/// Bytes that are copied at once.
const STAGED: u64 = 64 << 20;

/// A buffer with memory of its own, which shaders get by address.
pub struct Buffer<'v> {
    vulkan: &'v Vulkan,
    pub handle: vk::Buffer,
    memory: vk::DeviceMemory,
    pub address: vk::DeviceAddress,
    /// The bytes that may be used.
    pub bytes: u64,
    /// The bytes that are allocated.
    allocated: u64,
    /// Where the host sees it; null for memory that it does not see.
    mapped: *mut u32,
}

/// What a buffer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Arrays of shaders, triangles and instances, scratch memory.
    Array,
    /// The memory of an acceleration structure.
    Structure,
    /// A table of shaders.
    Table,
    /// A copy on its way from or to the host.
    Staging,
}

impl Vulkan {
    /// Allocates a buffer of at least one byte.
    pub fn buffer(&self, bytes: u64, purpose: Purpose) -> Result<Buffer<'_>, VulkanError> {
        let bytes = bytes.max(16);
        let arrays = vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let usage = match purpose {
            Purpose::Array => {
                arrays
                    | vk::BufferUsageFlags::STORAGE_BUFFER
                    | vk::BufferUsageFlags::ACCELERATION_STRUCTURE_BUILD_INPUT_READ_ONLY_KHR
            }
            Purpose::Structure => arrays | vk::BufferUsageFlags::ACCELERATION_STRUCTURE_STORAGE_KHR,
            Purpose::Table => arrays | vk::BufferUsageFlags::SHADER_BINDING_TABLE_KHR,
            Purpose::Staging => arrays,
        };
        let on_host = purpose == Purpose::Staging;
        let info = vk::BufferCreateInfo::default().size(bytes).usage(usage);
        // SAFETY: the info is valid.
        let handle = unsafe { self.device.create_buffer(&info, None) };
        let handle = handle.map_err(failed("make a buffer"))?;
        let mut buffer = Buffer {
            vulkan: self,
            handle,
            memory: vk::DeviceMemory::null(),
            address: 0,
            bytes,
            allocated: 0,
            mapped: std::ptr::null_mut(),
        };
        // SAFETY: the buffer is the device's, as below.
        let needed = unsafe { self.device.get_buffer_memory_requirements(handle) };
        let host = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        // The host reads memory that it does not cache slowly.
        let wanted = match purpose {
            Purpose::Staging => [host | vk::MemoryPropertyFlags::HOST_CACHED, host],
            Purpose::Array | Purpose::Structure | Purpose::Table => {
                [vk::MemoryPropertyFlags::DEVICE_LOCAL; 2]
            }
        };
        let kind = wanted.iter().find_map(|wanted| {
            (0..self.memory.memory_type_count).find(|kind| {
                let flags = self.memory.memory_types[*kind as usize].property_flags;
                needed.memory_type_bits >> kind & 1 == 1 && flags.contains(*wanted)
            })
        });
        let kind = kind.ok_or_else(|| {
            let memory = if on_host { "the host's" } else { "its own" };
            VulkanError::Unsupported(format!("the device has no memory for {memory} buffers"))
        })?;
        let mut addressed =
            vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(needed.size)
            .memory_type_index(kind)
            .push_next(&mut addressed);
        // SAFETY: the size and the kind are those that the buffer needs.
        let memory = unsafe { self.device.allocate_memory(&info, None) };
        buffer.memory = memory.map_err(|result| match result {
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY => {
                VulkanError::Memory { bytes: needed.size }
            }
            result => failed("allocate memory")(result),
        })?;
        buffer.allocated = needed.size;
        self.count_allocated(needed.size);
        let info = vk::BufferDeviceAddressInfo::default().buffer(handle);
        // SAFETY: the memory was allocated for this buffer; the host sees it where it is mapped.
        unsafe {
            (self.device.bind_buffer_memory(handle, buffer.memory, 0))
                .map_err(failed("bind memory"))?;
            buffer.address = self.device.get_buffer_device_address(&info);
            if on_host {
                let map = vk::MemoryMapFlags::empty();
                let mapped = self
                    .device
                    .map_memory(buffer.memory, 0, vk::WHOLE_SIZE, map);
                buffer.mapped = mapped.map_err(failed("map memory"))?.cast();
            }
        }
        Ok(buffer)
    }

    /// Allocates an array of the words.
    pub fn upload(&self, words: &[u32]) -> Result<Buffer<'_>, VulkanError> {
        let buffer = self.buffer(size_of_val(words) as u64, Purpose::Array)?;
        self.write(&buffer, words)?;
        Ok(buffer)
    }

    /// Copies words to the start of an array or a table.
    ///
    /// # Panics
    /// Where it is shorter.
    pub fn write(&self, buffer: &Buffer<'_>, words: &[u32]) -> Result<(), VulkanError> {
        let bytes = size_of_val(words) as u64;
        assert!(bytes <= buffer.bytes);
        let staging = self.buffer(bytes.min(STAGED), Purpose::Staging)?;
        for (part, words) in words.chunks(STAGED as usize / 4).enumerate() {
            let bytes = size_of_val(words) as u64;
            // SAFETY: the words are their bytes.
            staging.write(unsafe {
                std::slice::from_raw_parts(words.as_ptr().cast(), bytes as usize)
            });
            let copy = [vk::BufferCopy::default()
                .dst_offset(part as u64 * STAGED)
                .size(bytes)];
            // SAFETY: both are that long, and the run is waited for.
            self.run(|commands| unsafe {
                (self.device).cmd_copy_buffer(commands, staging.handle, buffer.handle, &copy);
            })?;
        }
        Ok(())
    }

    /// Copies the first `count` words of an array to the host.
    ///
    /// # Panics
    /// Where it has fewer.
    pub fn download(&self, buffer: &Buffer<'_>, count: usize) -> Result<Vec<u32>, VulkanError> {
        let bytes = count as u64 * 4;
        assert!(bytes <= buffer.bytes);
        let staging = self.buffer(bytes.min(STAGED), Purpose::Staging)?;
        let mut words = Vec::with_capacity(count);
        for first in (0..bytes).step_by(STAGED as usize) {
            let part = (bytes - first).min(STAGED);
            let copy = [vk::BufferCopy::default().src_offset(first).size(part)];
            // SAFETY: both are that long, and the run is waited for.
            self.run(|commands| unsafe {
                (self.device).cmd_copy_buffer(commands, buffer.handle, staging.handle, &copy);
            })?;
            words.extend(staging.words(part as usize / 4));
        }
        Ok(words)
    }
}

impl Buffer<'_> {
    /// Writes bytes to the start of memory that the host sees.
    ///
    /// # Panics
    /// Where it does not see it, or where it is shorter.
    pub fn write(&self, bytes: &[u8]) {
        assert!(!self.mapped.is_null() && bytes.len() as u64 <= self.bytes);
        // SAFETY: mapped and that long, and nothing runs while the host writes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.mapped.cast(), bytes.len()) };
    }

    /// Reads the first words of memory that the host sees.
    fn words(&self, count: usize) -> impl Iterator<Item = u32> {
        assert!(!self.mapped.is_null() && count as u64 * 4 <= self.bytes);
        let start = self.mapped;
        // SAFETY: mapped and that long; mappings are aligned to more than words.
        (0..count).map(move |i| unsafe { start.add(i).read() })
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing that runs uses it, as each run is waited for. Freed memory is unmapped.
        unsafe {
            self.vulkan.device.destroy_buffer(self.handle, None);
            self.vulkan.device.free_memory(self.memory, None);
        }
        self.vulkan.count_freed(self.allocated);
    }
}
