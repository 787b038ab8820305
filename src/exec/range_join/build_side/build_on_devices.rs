//! Building a build side on devices: they sort and index collected rows, or add to what they have kept.

use std::sync::Arc;
use std::time::Instant;

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;

use crate::exec::range_join::build_side::builder::BuildSideBuilder;
use crate::exec::range_join::build_side::collect_or_spill::CollectedRows;
use crate::exec::range_join::build_side::device_join::DeviceJoin;
use crate::exec::range_join::build_side::device_side::{DeviceBuilder, DeviceSide};
use crate::exec::range_join::build_side::kept::BuildSideKeeper;
use crate::exec::range_join::build_side::kept_on_devices::DeviceSegment;
use crate::exec::range_join::build_side::kept_segments::KeptSegments;
use crate::exec::range_join::build_side::kept_side::SegmentedRows;
use crate::exec::range_join::devices::JoinDevices;
use crate::exec::range_join::spill::retaining_pool::is_out_of_memory;
use rmq_arrow::index::cpu_fallback::is_out_of_device_memory;

impl BuildSideBuilder {
    /// Sorts and indexes rows on devices, and keeps them for later queries; `None` if the CPU has to.
    pub(crate) async fn build_on_devices(
        &self,
        rows: &Arc<CollectedRows>,
    ) -> Result<Option<DeviceJoin>> {
        let Some(devices) = self.select_devices(rows.num_rows()).await? else {
            return Ok(None);
        };
        let builder = self.device_builder(devices.clone());
        let side = match builder.build(Arc::clone(rows)).await {
            Ok(Some(side)) => side,
            Ok(None) => {
                self.metrics.record_cpu_fallback();
                self.record_cpu("these devices do not join");
                return Ok(None);
            }
            Err(error) => return self.fall_back(error, &devices).map(|()| None),
        };
        self.memory.stop_retaining();
        let values = (0..side.values().count()).collect();
        let Some(keeper) = &self.keeper else {
            let found = (Arc::new(side), values);
            return self.join_on_devices(found, devices).map(Some);
        };
        let segment = Arc::new(keeper.segment_on_devices(side));
        let found = (segment.known().side, values);
        let target = devices.target();
        keeper.keep(SegmentedRows::one(segment), target).await;
        self.join_on_devices(found, devices).map(Some)
    }

    /// A join of rows that devices have sorted, with what it finds there of its values.
    fn join_on_devices(
        &self,
        found: (Arc<DeviceSide>, Vec<usize>),
        devices: JoinDevices,
    ) -> Result<DeviceJoin> {
        let builder = self.device_builder(devices);
        DeviceJoin::try_new(builder, found, self.memory.reservation())
    }

    fn device_builder(&self, devices: JoinDevices) -> DeviceBuilder {
        DeviceBuilder {
            columns: self.columns.clone(),
            metrics: self.metrics.clone(),
            threads: self.options.threads(),
            devices,
        }
    }

    /// A join of rows that devices have in one segment. Values that they lack are added; `None` if all rows have to be
    /// built anew.
    pub(crate) async fn join_kept_on_devices(
        &self,
        keeper: &BuildSideKeeper,
        segment: &DeviceSegment,
        inputs: impl FnOnce() -> Result<Vec<SendableRecordBatchStream>>,
        devices: JoinDevices,
    ) -> Result<Option<DeviceJoin>> {
        let builder = self.device_builder(devices.clone());
        let read = async || self.collect_all(inputs()?).await;
        let found = keeper.complete_on_devices(segment, builder, read).await;
        match found {
            Ok(Some(found)) => {
                self.memory.stop_retaining();
                self.join_on_devices(found, devices).map(Some)
            }
            Ok(None) => Ok(None),
            Err(error) => self.give_up(error, &devices).map(|()| None),
        }
    }

    /// Joins of the segments of a build side that devices have: those that are kept, with the values that they lack,
    /// and a new one of the rows that have been appended. Keeps them for later queries; `None` if all rows have to be
    /// built anew.
    pub(crate) async fn join_segments_on_devices(
        &self,
        kept: KeptSegments<DeviceSegment>,
        devices: &JoinDevices,
    ) -> Result<Option<Vec<DeviceJoin>>> {
        let (mut joins, mut segments) = (vec![], vec![]);
        for (number, part) in kept.parts.iter().enumerate() {
            let builder = self.device_builder(devices.clone());
            let read = async || self.collect_all(kept.read(number)?).await;
            let segment = match &part.kept {
                Some(segment) => Arc::clone(segment),
                None => {
                    // Devices join no empty side.
                    let rows = read().await?.filter(|rows| rows.num_rows() > 0);
                    let Some(rows) = rows else {
                        return Ok(None);
                    };
                    let started = Instant::now();
                    match builder.clone().build(Arc::new(rows)).await {
                        Ok(Some(side)) => {
                            self.metrics.record_build(started);
                            Arc::new(part.keeper.segment_on_devices(side))
                        }
                        Ok(None) => return Ok(None),
                        Err(error) => return self.give_up(error, devices).map(|()| None),
                    }
                }
            };
            let keeper = &part.keeper;
            let found = match keeper.complete_on_devices(&segment, builder, read).await {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(None),
                Err(error) => return self.give_up(error, devices).map(|()| None),
            };
            joins.push(self.join_on_devices(found, devices.clone())?);
            segments.push(segment);
        }
        self.memory.stop_retaining();
        kept.keep(segments).await;
        Ok(Some(joins))
    }

    /// Gives up rows that devices have after a failure to add to them. Where devices lack memory, they may sort all
    /// rows anew.
    ///
    /// # Errors
    /// As [`Self::fall_back`].
    fn give_up(&self, error: DataFusionError, devices: &JoinDevices) -> Result<()> {
        if is_out_of_device_memory(&error) {
            log::debug!("the rows of a range join on devices are built anew: {error}");
            return Ok(());
        }
        self.fall_back(error, devices)
    }

    /// Lets the CPU join after a failure of devices.
    ///
    /// # Errors
    /// The failure if the devices are forced, or if it is not one of devices.
    fn fall_back(&self, error: DataFusionError, devices: &JoinDevices) -> Result<()> {
        let why = if is_out_of_memory(&error) {
            // Sorting on the CPU needs less memory of the host, or spills.
            log::debug!("the CPU sorts a range join: {error}");
            "too little memory to pass rows to devices".to_string()
        } else {
            devices.why_cpu(error)?
        };
        self.metrics.record_cpu_fallback();
        self.record_cpu(&why);
        Ok(())
    }
}
