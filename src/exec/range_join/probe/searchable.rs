//! A build side that can be probed.

use std::sync::Arc;

use datafusion::common::Result;

use crate::exec::range_join::build::builder::{BuildSideBuilder, Built};
use crate::exec::range_join::build::device_join::DeviceJoin;
use crate::exec::range_join::build::side::BuildSide;
use crate::exec::range_join::probe::spilled::side::SpilledSide;

/// A build side that can be probed.
#[derive(Debug)]
pub(crate) enum SearchableBuild {
    InMemory(Arc<BuildSide>),
    OnDevices(Arc<DeviceJoin>),
    /// Run by run.
    Spilled(Arc<SpilledSide>),
}

impl SearchableBuild {
    /// Makes what `builder` built searchable by this many partitions.
    pub(crate) fn try_new(
        built: Built,
        builder: &BuildSideBuilder,
        probe_partitions: usize,
    ) -> Result<Self> {
        Ok(match built {
            Built::InMemory(side) => Self::InMemory(Arc::from(side)),
            Built::OnDevices(join) => Self::OnDevices(Arc::from(join)),
            Built::InRuns(runs) => {
                let side = SpilledSide::try_new(runs, builder, probe_partitions)?;
                Self::Spilled(Arc::new(side))
            }
        })
    }
}
