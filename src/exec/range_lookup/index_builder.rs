//! Prepares the indexes of a relation for one run: finds them in the session's catalog, or reads the columns and builds
//! them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryConsumer;

use crate::exec::common::blocking::{Waiting, blocking};
use crate::exec::common::engine_choice::Decision;
use crate::exec::common::statistic_copies::CopyDevices;
use crate::exec::range_lookup::file_column::FileColumn;
use crate::exec::range_lookup::file_rows::{FileRows, ParquetFiles};
use crate::exec::range_lookup::kept_index::KeptIndex;
use crate::exec::range_lookup::memory_budget::MemoryBudget;
use crate::exec::range_lookup::persisted_columns::{ColumnFile, PersistedValues};
use crate::exec::range_lookup::required::{IndexId, IndexUse, RequiredIndex, RequiredIndexes};
use crate::exec::range_lookup::scan::{RelationScan, ScanVersion, read_version, version_of_files};
use crate::exec::range_lookup::source::{RelationSource, column_type};
use crate::kept::on_disk::OnDisk;
use crate::kept::ready_index::ReadyIndex;
use crate::kept::reserved_index::{IndexMemory, IndexPart, ReservedIndex};
use crate::kept::version::Span;
use datafusion_rmq_logical::common::options::RmqOptions;
use rmq_arrow::common::errors::engine_error;
use rmq_arrow::common::ordered_type::value_type;
use rmq_arrow::common::range_function::IndexKind;
use rmq_arrow::index::chunk_extremes::ChunkExtremes;
use rmq_arrow::index::column_index::ColumnIndex;
use rmq_arrow::index::cpu_fallback::{device_failure, is_out_of_device_memory};
use rmq_arrow::index::devices::{DeviceEngine, Target};
use rmq_arrow::index::key_index::KeyIndex;
use rmq_arrow::index::sort_keys::Chunks;

/// An index that is ready to be queried.
#[derive(Debug, Clone)]
pub(crate) struct PreparedIndex {
    pub(crate) id: IndexId,
    pub(crate) ready: ReadyIndex,
    pub(crate) origin: Origin,
    /// Whether it is on the CPU although devices were chosen.
    pub(crate) fell_back: bool,
    /// The column, if it is not in memory: the index is that of its chunks' extremes.
    pub(crate) files: Option<Arc<FileColumn>>,
}

/// Where an index comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Origin {
    /// An earlier query has built it.
    Cached,
    /// Another process has written it, or the column, to a file. How long reading took.
    Loaded(Duration),
    /// This run has built some of it, or all.
    Built(Built),
}

/// What a run has built of an index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Built {
    /// How long reading the column took.
    pub(crate) load_time: Duration,
    /// The rows that were indexed: all, or those after the parts of a cached index.
    pub(crate) rows: usize,
}

impl PreparedIndex {
    pub(super) fn new(
        id: IndexId,
        reserved: Arc<ReservedIndex>,
        decision: &Decision,
        origin: Origin,
    ) -> Self {
        Self {
            id,
            ready: ReadyIndex {
                reserved,
                allow_cpu_fallback: !decision.forced,
            },
            origin,
            fell_back: false,
            files: None,
        }
    }
}

/// Prepares the indexes of one relation in one run.
pub(crate) struct IndexBuilder<'a> {
    pub(super) required: &'a RequiredIndexes,
    pub(super) context: &'a Arc<TaskContext>,
    pub(super) options: RmqOptions,
    pub(super) partitions: usize,
}

/// An index that is not cached.
pub(super) struct MissingIndex {
    pub(super) id: IndexId,
    pub(super) data_type: DataType,
    pub(super) index_use: IndexUse,
    pub(super) decision: Option<Decision>,
    /// The parts of a cached index of an older version that stay. The rows after these are read and indexed.
    pub(super) parts: Vec<IndexPart>,
}

/// What the catalog has of an index.
enum InCatalog {
    Whole(PreparedIndex),
    /// The parts that stay, perhaps none, and the scan of the rows after these; `None` for that of all rows.
    Parts(MissingIndex, Option<RelationScan>),
}

/// Indexes that are not cached, and the scan of the rows that are read for them; `None` for that of all rows.
#[derive(Default)]
pub(super) struct MissingIndexes {
    pub(super) scan: Option<RelationScan>,
    pub(super) indexes: Vec<MissingIndex>,
}

/// The parts of a cached index that stay, and the scan of the rows after these.
struct Extension {
    parts: Vec<IndexPart>,
    tail: RelationScan,
}

/// The chunks of a column whose rows stay in files.
pub(super) struct LoadedChunks {
    pub(super) missing: MissingIndex,
    pub(super) rows: Arc<FileRows>,
    pub(super) chunks: ChunkExtremes,
    pub(super) extremes: Vec<ArrayRef>,
    /// The file in which other processes find them, if they can.
    pub(super) file: Option<ColumnFile>,
    /// Whether they were read from it.
    pub(super) is_persisted: bool,
}

/// The read of the columns that all builds of a run share.
pub(super) struct ColumnsRead {
    /// The version of the data that was read, if the table reveals it.
    pub(super) version: Option<ScanVersion>,
    pub(super) load_time: Duration,
}

impl<'a> IndexBuilder<'a> {
    pub(crate) fn new(required: &'a RequiredIndexes, context: &'a Arc<TaskContext>) -> Self {
        let config = context.session_config();
        Self {
            required,
            context,
            options: RmqOptions::of(config.options()),
            partitions: config.target_partitions(),
        }
    }

    /// Finds or builds all required indexes. `scan` reads the required columns.
    ///
    /// # Errors
    /// Those of reading the table, and of the engines that the option forces; "Resources exhausted" for columns or
    /// indexes that do not fit in memory.
    pub(crate) async fn prepare(&self, scan: &RelationScan) -> Result<Vec<PreparedIndex>> {
        let (required, options) = (self.required, &self.options);
        let version = self.version(scan).await?;

        let mut prepared = vec![];
        // By the number of arrays or files before what is read.
        let mut missing: BTreeMap<usize, MissingIndexes> = BTreeMap::new();
        for (id, index) in required.all() {
            match self.find(id, index, scan, version.as_ref()).await? {
                InCatalog::Whole(index) => prepared.push(index),
                InCatalog::Parts(index, tail) => {
                    let missing = missing.entry(pieces(&index.parts)).or_default();
                    missing.scan = tail;
                    missing.indexes.push(index);
                }
            }
        }
        // The limits may have been lowered since the cached indexes were built.
        required.catalog.shrink_to(options.index_memory_limit);
        if let Some(limit) = options.device_memory_limit {
            required.catalog.shrink_devices_to(limit);
        }
        if missing.is_empty() {
            return Ok(prepared);
        }

        let started = Instant::now();
        let loaded = self.load(missing, scan, version.as_ref()).await?;
        let load_time = started.elapsed();
        // The version is read again: an index is cached only if the data was the same before and after.
        let version = match version {
            Some(before) => {
                let after = self.version(scan).await?;
                after.filter(|after| after.is_settled_since(&before))
            }
            None => None,
        };
        let read = ColumnsRead { version, load_time };
        for loaded in loaded.in_files {
            prepared.push(self.build_of_chunks(loaded, &read)?);
        }
        for loaded in loaded.in_memory {
            prepared.extend(self.build_in_memory(loaded, &read).await?);
        }
        Ok(prepared)
    }

    /// Finds a required index in the catalog, or what it has of it.
    async fn find(
        &self,
        id: IndexId,
        index: RequiredIndex,
        scan: &RelationScan,
        version: Option<&ScanVersion>,
    ) -> Result<InCatalog> {
        let data_type = column_type(&scan.schema(), &id.column)?;
        let cached = self.cached(&id, version, &data_type);
        // Once a limit is raised, all rows may fit.
        let in_files = |index: &ColumnIndex| {
            let chunks = index.chunks();
            chunks.is_some_and(|chunks| self.budget().bytes() <= chunks.budget)
        };
        if self.may_be_in_files(&index.index_use, &data_type)
            && let Some(found) = cached.find(&Target::Cpu, in_files)
            && let Some(chunks) = found.index.chunks()
            && let Some(version) = version
            && let Some(files) = ParquetFiles::of(self.required, scan, version)
        {
            let rows = Arc::new(files.with_ends(Arc::clone(&chunks.file_ends)));
            let index = self.in_files(id, found, &data_type, rows, Origin::Cached)?;
            return Ok(InCatalog::Whole(index));
        }
        let mut decision = index.decision;
        let rows = || {
            cached
                .rows()
                .or_else(|| Some(cached.extension_on_any(scan)?.rows()))
        };
        if decision.is_none()
            && let Some(rows) = rows()
        {
            decision = self.decide(&id, index.index_use, rows, &data_type).await?;
        }
        if let Some(decision) = &decision {
            self.required.record(&id, decision.clone());
            let found = cached.find(&decision.target, |index| index.chunks().is_none());
            if let Some(found) = found {
                let index = PreparedIndex::new(id, found, decision, Origin::Cached);
                return Ok(InCatalog::Whole(index));
            }
        }
        let target = decision.as_ref().map(|decision| &decision.target);
        let extension = target.and_then(|target| cached.extension(scan, target));
        let (parts, tail) = extension.map(|e| (e.parts, e.tail)).unzip();
        let missing = MissingIndex {
            id,
            data_type,
            index_use: index.index_use,
            decision,
            parts: parts.unwrap_or_default(),
        };
        Ok(InCatalog::Parts(missing, tail))
    }

    /// Reserves bytes for the index of a column. Evicts the least worthwhile indexes for them.
    pub(super) fn reserve(
        &self,
        id: &IndexId,
    ) -> impl Fn(usize) -> Result<IndexMemory> + Send + use<> {
        let label = self.required.column_label(&id.column);
        let catalog = Arc::clone(&self.required.catalog);
        let (pool, limit) = (
            Arc::clone(self.context.memory_pool()),
            self.options.index_memory_limit,
        );
        move |bytes| catalog.reserve(&label, bytes, limit, &pool)
    }

    pub(super) fn budget(&self) -> MemoryBudget<'_> {
        MemoryBudget {
            catalog: &self.required.catalog,
            limit: self.options.index_memory_limit,
            pool: self.context.memory_pool(),
        }
    }

    /// The version of what `scan` would return now, if it can be told.
    async fn version(&self, scan: &RelationScan) -> Result<Option<ScanVersion>> {
        let label = &self.required.label;
        match &self.required.source {
            RelationSource::Table { provider, .. } => {
                read_version(label, scan, provider, self.context).await
            }
            RelationSource::Sent { plan, key: Some(_) } => {
                version_of_files(label, plan, self.context).await
            }
            RelationSource::Sent { key: None, .. } | RelationSource::Query(_) => Ok(None),
        }
    }

    /// Builds an index on the engine that is chosen for it, or else on the CPU. `chunks` are the rows after its parts,
    /// and `persisted` tells of the file that they are in.
    pub(super) async fn build_missing(
        &self,
        missing: MissingIndex,
        chunks: Chunks,
        persisted: &PersistedValues,
        read: &ColumnsRead,
    ) -> Result<PreparedIndex> {
        let MissingIndex {
            id,
            data_type,
            index_use,
            decision,
            parts,
        } = missing;
        let decision = match decision {
            Some(decision) => decision,
            None => self
                .decide(&id, index_use, chunks.rows(), &data_type)
                .await?
                .unwrap_or_else(|| Decision::cpu("")),
        };
        self.required.record(&id, decision.clone());
        let input = BuildInput {
            label: self.required.column_label(&id.column),
            id: id.clone(),
            data_type,
            span: read.span(&id.column, &parts),
            chunks,
            threads: self.options.threads(),
            disk: Arc::clone(&persisted.disk),
        };
        let mut origin = if persisted.is_loaded {
            Origin::Loaded(read.load_time)
        } else {
            Origin::Built(Built {
                load_time: read.load_time,
                rows: input.chunks.rows(),
            })
        };
        let Target::Devices(engine) = &decision.target else {
            let index = self.build_on_cpu(&input, parts).await?;
            self.cache(&id, &Target::Cpu, &index, read);
            return Ok(PreparedIndex::new(id, index, &decision, origin));
        };
        let why = match self.build_on_devices(engine, &input, parts.clone()).await {
            Ok(index) => {
                self.cache(&id, &decision.target, &index, read);
                return Ok(PreparedIndex::new(id, index, &decision, origin));
            }
            Err(error) if decision.forced => {
                let label = input.label;
                return Err(error.context(format!("rmq.engine = 'cuda': the index of {label}")));
            }
            Err(error) => device_failure(&error).ok_or(error)?,
        };
        log::warn!("the CPU answers ranges of {}: {why}", input.label);
        self.required.record(&id, Decision::cpu(why));
        let cached = self.cached(&id, read.version.as_ref(), &input.data_type);
        let index = match cached.find(&Target::Cpu, |index| index.chunks().is_none()) {
            Some(index) => {
                origin = Origin::Cached;
                index
            }
            None => {
                // The parts are on devices.
                let input = input.after(&parts, read.span(&id.column, &[]));
                if let Origin::Built(built) = &mut origin {
                    built.rows = input.chunks.rows();
                }
                let index = self.build_on_cpu(&input, vec![]).await?;
                self.cache(&id, &Target::Cpu, &index, read);
                index
            }
        };
        Ok(PreparedIndex {
            fell_back: true,
            ..PreparedIndex::new(id, index, &decision, origin)
        })
    }

    async fn decide(
        &self,
        id: &IndexId,
        index_use: IndexUse,
        rows: usize,
        data_type: &DataType,
    ) -> Result<Option<Decision>> {
        let (partitions, options) = (self.partitions, &self.options);
        self.required
            .decide(id, index_use, Some(rows), data_type, partitions, options)
            .await
    }

    /// Caches an index for later queries, if the table can tell that nothing changed.
    pub(super) fn cache(
        &self,
        id: &IndexId,
        target: &Target,
        index: &Arc<ReservedIndex>,
        read: &ColumnsRead,
    ) {
        if let (Some(key), Some(version)) = (self.required.cache_key(id, target), &read.version)
            && self.options.keep_indexes
        {
            let version = version.of_column(&id.column).clone();
            let reserved = Arc::clone(index);
            let kept = Arc::new(KeptIndex { key, reserved });
            let limit = self.options.index_memory_limit;
            self.required.catalog.keep(kept, version, limit);
        }
    }

    /// The cached indexes of a column in this version.
    pub(super) fn cached<'b>(
        &'b self,
        id: &'b IndexId,
        version: Option<&'b ScanVersion>,
        data_type: &DataType,
    ) -> CachedIndexes<'b> {
        CachedIndexes {
            required: self.required,
            id,
            version: version.filter(|_| self.options.keep_indexes),
            value_type: value_type(data_type),
        }
    }

    /// Builds the CPU engine's index of the rows after these parts.
    async fn build_on_cpu(
        &self,
        input: &BuildInput,
        parts: Vec<IndexPart>,
    ) -> Result<Arc<ReservedIndex>> {
        let (chunks, data_type, kind) = (&input.chunks, &input.data_type, input.id.kind);
        let memory =
            self.reserve(&input.id)(ColumnIndex::estimate_on_cpu(chunks, data_type, kind))?;
        let working = MemoryConsumer::new(format!("rmq build of {}", input.label));
        let working = working.register(self.context.memory_pool());
        let catalog = &self.required.catalog;
        catalog.grow(
            &working,
            ColumnIndex::working_bytes(chunks, data_type, kind),
        )?;
        let devices = CopyDevices::new(catalog, &self.options);
        // The closure owns the reservation: a build that has begun can't be stopped and uses the memory to its end.
        input
            .spawn(move |b, waiting| {
                let _working = working;
                let stops = || waiting.check().is_err();
                let kind = b.id.kind;
                let mut index =
                    ColumnIndex::on_cpu(&b.chunks, &b.data_type, kind, b.threads, &stops)?;
                let statistics = index.statistics_mut();
                let on_device = statistics.and_then(|index| devices.copy(index, b.threads));
                ReservedIndex::extended(parts, index, memory, on_device, b.span)
            })
            .await
    }

    /// Builds the index of the rows after these parts in the memory of devices. Evicts cached indexes there until it
    /// fits.
    ///
    /// # Errors
    /// One that [`device_failure`] recognizes if the CPU engine may take over.
    async fn build_on_devices(
        &self,
        engine: &Arc<dyn DeviceEngine>,
        input: &BuildInput,
        parts: Vec<IndexPart>,
    ) -> Result<Arc<ReservedIndex>> {
        let (chunks, data_type) = (&input.chunks, &input.data_type);
        let (catalog, options) = (&self.required.catalog, &self.options);
        let device_bytes = ColumnIndex::estimate_on_devices(&**engine, chunks, data_type);
        let bytes = KeyIndex::estimate(&**engine, chunks, data_type);
        loop {
            let limit = options.device_memory_limit;
            let on_device = catalog
                .reserve_on_devices(&**engine, device_bytes, limit)
                .map_err(engine_error)?;
            let memory = self.reserve(&input.id)(bytes)?;
            let (engine, parts) = (Arc::clone(engine), parts.clone());
            let built = input
                .spawn(move |b, waiting| {
                    let engine = engine.until(Arc::clone(waiting.stop()));
                    let (chunks, data_type) = (&b.chunks, &b.data_type);
                    let extreme = b.id.extreme()?;
                    let index =
                        ColumnIndex::on_devices(&*engine, chunks, data_type, extreme, b.threads)?;
                    ReservedIndex::extended(parts, index, memory, Some(on_device), b.span)
                })
                .await;
            match built {
                // Other processes use device memory as well.
                Err(error) if is_out_of_device_memory(&error) && catalog.evict_from_device() => {}
                built => return built,
            }
        }
    }
}

/// The indexes of a column in one version that the session's catalog caches.
pub(super) struct CachedIndexes<'a> {
    required: &'a RequiredIndexes,
    id: &'a IndexId,
    /// `None` if no cached index may be used.
    version: Option<&'a ScanVersion>,
    value_type: DataType,
}

impl CachedIndexes<'_> {
    /// The cached index on this engine, if it `serves`.
    fn find(
        &self,
        target: &Target,
        serves: impl Fn(&ColumnIndex) -> bool,
    ) -> Option<Arc<ReservedIndex>> {
        let version = self.version?.of_column(&self.id.column);
        let key = self.required.cache_key(self.id, target)?;
        self.required.catalog.find(|kept, known| {
            let reserved = key.find_in(kept)?;
            let is_found = known.matches(version)
                && reserved.index.value_type() == &self.value_type
                && serves(&reserved.index);
            is_found.then(|| Arc::clone(reserved))
        })
    }

    /// How an engine's index of an older version is extended to this one, if only rows were added and `scan` can be
    /// restricted to these.
    fn extension(&self, scan: &RelationScan, target: &Target) -> Option<Extension> {
        let RelationSource::Table { .. } = self.required.source else {
            return None;
        };
        let version = self.version?.of_column(&self.id.column);
        let key = self.required.cache_key(self.id, target)?;
        let parts = self.required.catalog.peek(|kept, known| {
            let reserved = key.find_in(kept)?;
            let is_same_type = reserved.index.value_type() == &self.value_type;
            is_same_type.then(|| reserved.parts_that_stay(known, version))
        })?;
        let start = pieces(&parts);
        let tail = (start > 0).then(|| scan.tail(start, version.span(start)));
        let tail = tail??;
        Some(Extension { parts, tail })
    }

    /// How the index of an older version on any engine is extended to this one.
    fn extension_on_any(&self, scan: &RelationScan) -> Option<Extension> {
        let mut targets = self.targets();
        targets.find_map(|target| self.extension(scan, &target))
    }

    /// The engines that may have an index.
    fn targets(&self) -> impl Iterator<Item = Target> + use<> {
        let devices = self.required.catalog.devices().in_use();
        let targets = [Some(Target::Cpu), devices.map(Target::Devices)];
        targets.into_iter().flatten()
    }

    /// The column's number of rows, if an index is cached on any engine.
    fn rows(&self) -> Option<usize> {
        self.find_map(self.id, |reserved| Some(reserved.index.rows()))
    }

    /// The state of the file of the column's values, if these are being written, as an index of any kind tells.
    pub(super) fn writing(&self) -> Option<Arc<OnDisk>> {
        IndexKind::ALL.into_iter().find_map(|kind| {
            let id = IndexId {
                kind,
                ..self.id.clone()
            };
            self.find_map(&id, |reserved| {
                let is_of_values = reserved.index.chunks().is_none();
                let disk = (is_of_values && reserved.disk.is_writing()).then_some(&reserved.disk);
                disk.cloned()
            })
        })
    }

    /// What `find` finds in an index of the column that is cached on any engine.
    fn find_map<T>(&self, id: &IndexId, find: impl Fn(&ReservedIndex) -> Option<T>) -> Option<T> {
        let version = self.version?.of_column(&id.column);
        self.targets().find_map(|target| {
            let key = self.required.cache_key(id, &target)?;
            self.required.catalog.peek(|kept, known| {
                let reserved = key.find_in(kept)?;
                known.matches(version).then(|| find(reserved))?
            })
        })
    }
}

impl Extension {
    /// The rows of the parts, which are most of all.
    fn rows(&self) -> usize {
        self.parts.iter().map(IndexPart::rows).sum()
    }
}

/// The arrays or files of these parts.
fn pieces(parts: &[IndexPart]) -> usize {
    parts.iter().map(|part| part.span.pieces).sum()
}

impl ColumnsRead {
    /// What was read of a column after these parts, if the version is known.
    pub(super) fn span(&self, column: &str, parts: &[IndexPart]) -> Span {
        let version = self.version.as_ref();
        version.map_or_else(Span::default, |version| {
            version.of_column(column).span(pieces(parts))
        })
    }
}

/// The input of a build.
#[derive(Clone)]
struct BuildInput {
    label: String,
    id: IndexId,
    data_type: DataType,
    chunks: Chunks,
    /// What the chunks are of the table's version.
    span: Span,
    threads: usize,
    /// Whether the rows are in a file.
    disk: Arc<OnDisk>,
}

impl BuildInput {
    /// All rows: those of parts that devices have, and these. `span` is that of all.
    fn after(&self, parts: &[IndexPart], span: Span) -> Self {
        let arrays = parts.iter().flat_map(IndexPart::arrays);
        let mut all = self.clone();
        all.chunks.arrays = arrays.chain(&self.chunks.arrays).cloned().collect();
        all.span = span;
        all
    }

    /// Builds on a thread that may block.
    async fn spawn(
        &self,
        build: impl FnOnce(&Self, &Waiting) -> Result<ReservedIndex> + Send + 'static,
    ) -> Result<Arc<ReservedIndex>> {
        let this = self.clone();
        let mut index = blocking(move |waiting| build(&this, &waiting)).await?;
        index.disk = Arc::clone(&self.disk);
        Ok(Arc::new(index))
    }
}
