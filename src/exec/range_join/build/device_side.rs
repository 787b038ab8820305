//! The device-resident part of a build side: the sorted keys, and the indexes of value columns.

use datafusion::common::Result;

use crate::common::errors::engine_error;
use crate::common::ranges::Ranges;
use crate::exec::common::blocking::Waiting;
use crate::exec::range_join::devices::JoinDevices;
use crate::index::catalog::DeviceBytes;
use crate::index::column_index::ColumnIndex;
use crate::index::sort_keys::Encoded;
use crate::sorted::device_keys::{DeviceKeys, KeyRangeBatch};
use crate::sorted::sorted_rows::SortedRows;
use rmq_engine::BuildOptions;

/// The device-resident part of a build side. The indexes belong to the columns; here is what registers their memory.
#[derive(Debug)]
pub(crate) struct DeviceSide {
    devices: JoinDevices,
    /// The sorted keys; none if devices can't search them, or failed to take them.
    keys: Option<DeviceKeys>,
    /// Bytes that the keys and the indexes take on each device.
    bytes: usize,
    _reserved: Vec<DeviceBytes>,
}

impl DeviceSide {
    /// Copies the sorted keys to devices that have the indexes already, whose memory is `reserved`.
    ///
    /// # Errors
    /// A failure of forced devices.
    pub(crate) fn try_new(
        devices: JoinDevices,
        rows: &SortedRows,
        mut reserved: Vec<DeviceBytes>,
        threads: usize,
        waiting: &Waiting,
        record_fallback: impl FnOnce(),
    ) -> Result<Self> {
        let keys = copy_keys(&devices, rows, threads, waiting);
        let keys = devices.or_cpu_fallback(keys, record_fallback)?.flatten();
        let keys = keys.map(|(keys, bytes)| {
            reserved.push(bytes);
            keys
        });
        Ok(Self {
            keys,
            bytes: reserved.iter().map(DeviceBytes::bytes).sum(),
            devices,
            _reserved: reserved,
        })
    }

    /// Bytes that the build side takes on each device.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the sorted keys are on the devices.
    pub(crate) fn has_keys(&self) -> bool {
        self.keys.is_some()
    }

    /// Whether the CPU may take over after a device failed.
    pub(crate) fn allow_cpu_fallback(&self) -> bool {
        self.devices.allow_cpu_fallback()
    }

    /// Finds the positions of key ranges on devices; `None` if the CPU has to.
    ///
    /// # Errors
    /// A failure of forced devices.
    pub(crate) fn find_ranges(
        &self,
        key_ranges: &KeyRangeBatch,
        record_fallback: impl FnOnce(),
    ) -> Result<Option<Ranges>> {
        let Some(keys) = &self.keys else {
            return Ok(None);
        };
        let found = keys.find(key_ranges).map_err(engine_error);
        self.devices.or_cpu_fallback(found, record_fallback)
    }
}

/// Copies sorted keys to devices; `None` if their type is one that devices can't search.
fn copy_keys(
    devices: &JoinDevices,
    rows: &SortedRows,
    threads: usize,
    waiting: &Waiting,
) -> Result<Option<(DeviceKeys, DeviceBytes)>> {
    let reserved = devices.reserve(rows.device_bytes())?;
    let engine = devices.cancellable_engine(waiting);
    let keys = rows.on_devices(&*engine, threads).map_err(engine_error)?;
    Ok(keys.map(|keys| (keys, reserved)))
}

/// Builds the index of a column on devices, in `bytes` of the memory of each.
///
/// # Errors
/// The failure of the devices.
pub(crate) fn build_index(
    devices: &JoinDevices,
    column: Encoded,
    bytes: usize,
    options: &BuildOptions,
    waiting: &Waiting,
) -> Result<(ColumnIndex, DeviceBytes)> {
    let reserved = devices.reserve(bytes)?;
    let engine = devices.cancellable_engine(waiting);
    let index = ColumnIndex::from_encoded_on_devices(&*engine, column, options)?;
    Ok((index, reserved))
}
