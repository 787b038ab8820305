//! The CUDA devices of a session: opened when a query first needs them, and shared by all later queries.

use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use rmq_engine::cost_model::Costs;
use rmq_engine::cuda::{self, CudaEngine, CudaOptions, DeviceInfo, DeviceUse};
use rmq_engine::{BuildOptions, ColumnSize, Engine, EngineError};

/// An engine whose indexes are stored in the memory of devices.
pub trait DeviceEngine: Engine {
    /// The devices in use and their memory; every index is stored on each of them.
    fn devices(&self) -> Vec<DeviceUse>;

    /// Returns the same engine with builds that fail soon after `stop` is set.
    fn until(&self, stop: Arc<AtomicBool>) -> Arc<dyn DeviceEngine>;

    /// Free bytes of a device's memory; `None` if the driver does not report them.
    fn free_bytes(&self, ordinal: usize) -> Option<usize>;

    /// The nanoseconds that a byte takes on the bus, if they were measured.
    fn bus_byte(&self) -> Option<f64> {
        None
    }

    /// The bytes that the index of a column of this size takes of each device, the column included.
    fn device_bytes(&self, size: ColumnSize, options: &BuildOptions) -> usize;
}

impl DeviceEngine for CudaEngine {
    fn devices(&self) -> Vec<DeviceUse> {
        self.devices()
    }

    fn until(&self, stop: Arc<AtomicBool>) -> Arc<dyn DeviceEngine> {
        Arc::new(self.until(stop))
    }

    fn free_bytes(&self, ordinal: usize) -> Option<usize> {
        self.free_bytes(ordinal)
    }

    fn bus_byte(&self) -> Option<f64> {
        self.bus_byte()
    }

    fn device_bytes(&self, size: ColumnSize, options: &BuildOptions) -> usize {
        self.device_bytes(size, options)
    }
}

/// A source of devices: the local machine, or a test.
pub trait DeviceSource: Send + Sync + Debug {
    /// Lists the devices.
    ///
    /// # Errors
    /// The reason why there are none, in one line.
    fn list(&self) -> Result<Vec<DeviceInfo>, EngineError>;

    /// Opens devices.
    ///
    /// # Errors
    /// The reason why they can't be used, in one line.
    fn open(&self, options: &CudaOptions) -> Result<Arc<dyn DeviceEngine>, EngineError>;

    /// The costs that the choice of the engine is based on.
    fn costs(&self) -> Costs {
        Costs::MEASURED
    }
}

/// The devices of the local machine.
#[derive(Debug)]
pub struct Machine;

impl DeviceSource for Machine {
    fn list(&self) -> Result<Vec<DeviceInfo>, EngineError> {
        cuda::devices()
    }

    fn open(&self, options: &CudaOptions) -> Result<Arc<dyn DeviceEngine>, EngineError> {
        Ok(Arc::new(CudaEngine::open(options)?))
    }
}

/// Where an index is built and queried. Two targets are equal if they are the CPU or the same engine object.
#[derive(Debug, Clone)]
pub enum Target {
    /// On the CPU.
    Cpu,
    /// On devices, by this engine.
    Devices(Arc<dyn DeviceEngine>),
}

impl Target {
    fn address(&self) -> Option<*const ()> {
        match self {
            Self::Cpu => None,
            Self::Devices(engine) => Some(Arc::as_ptr(engine).cast()),
        }
    }

    /// The name in EXPLAIN, such as `cpu`, `cuda:0` or `cuda:0,1`.
    pub fn label(&self) -> String {
        let Self::Devices(engine) = self else {
            return "cpu".to_string();
        };
        let ordinals = engine
            .devices()
            .iter()
            .map(|device| device.ordinal.to_string())
            .collect::<Vec<_>>();
        format!("{}:{}", engine.name(), ordinals.join(","))
    }
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        self.address() == other.address()
    }
}

impl Eq for Target {}

impl Hash for Target {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address().hash(state);
    }
}

/// The devices that a session has opened, or the reason why it could not.
#[derive(Debug)]
pub struct Devices {
    source: Arc<dyn DeviceSource>,
    /// Locked while devices are being opened: other callers wait.
    opening: Mutex<()>,
    opened: Mutex<Option<Opened>>,
}

#[derive(Debug, Clone)]
struct Opened {
    options: CudaOptions,
    result: Result<Arc<dyn DeviceEngine>, EngineError>,
}

impl Devices {
    /// Devices of this source, none of them opened yet.
    pub fn new(source: Arc<dyn DeviceSource>) -> Self {
        Self {
            source,
            opening: Mutex::default(),
            opened: Mutex::default(),
        }
    }

    /// Where the devices come from.
    pub fn source(&self) -> &dyn DeviceSource {
        &*self.source
    }

    /// Returns the devices that these options name. The first call opens them, which takes some 300 ms. A failure is
    /// cached: neither devices that did not open nor ones that failed later are opened again, unless the options
    /// change.
    ///
    /// # Errors
    /// The reason why the devices can't be used.
    pub fn open(&self, options: &CudaOptions) -> Result<Arc<dyn DeviceEngine>, EngineError> {
        if let Some(known) = self.known(options) {
            return known;
        }
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = self.known(options) {
            return known;
        }
        let result = self.source.open(options);
        match &result {
            Ok(engine) => log::info!(target: "datafusion_rmq",
                "range queries use CUDA devices {:?}",
                engine
                    .devices()
                    .iter()
                    .map(|d| d.ordinal)
                    .collect::<Vec<_>>()
            ),
            Err(error) => {
                log::warn!(target: "datafusion_rmq", "range queries can't use CUDA: {error}");
            }
        }
        let opened = Opened {
            options: options.clone(),
            result: result.clone(),
        };
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = Some(opened);
        result
    }

    /// Returns what [`Self::open`] would return without opening devices; `None` if it would have to open them.
    pub fn known(
        &self,
        options: &CudaOptions,
    ) -> Option<Result<Arc<dyn DeviceEngine>, EngineError>> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = opened.as_ref().filter(|o| o.options == *options)?;
        Some(opened.result.clone().and_then(|engine| {
            let failed = engine.devices().into_iter().map(|device| device.failed);
            match failed.collect::<Option<Vec<_>>>() {
                Some(why) => Err(EngineError::NoDevice {
                    why: why.join("; "),
                }),
                None => Ok(engine),
            }
        }))
    }

    /// The open devices, which need not be those that the options name now.
    pub fn in_use(&self) -> Option<Arc<dyn DeviceEngine>> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.as_ref()?.result.clone().ok()
    }
}
