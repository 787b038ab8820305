//! The options `rmq.*`: set by `SET rmq.name = value`, listed by
//! `SELECT name, value, description FROM information_schema.df_settings WHERE name LIKE 'rmq.%'`.

use std::any::Any;
use std::fmt::{self, Display};
use std::str::FromStr;
use std::sync::Weak;

use datafusion_common::config::{ConfigEntry, ConfigExtension, ConfigOptions, ExtensionOptions};
use datafusion_common::{DataFusionError, Result, config_err};

use crate::common::similar_names::did_you_mean;
use rmq_engine::cuda::CudaOptions;

/// The options of range queries and range joins, with the prefix `rmq`.
///
/// A session whose configuration has no such extension when range queries are registered gets the defaults.
///
/// ```
/// # use datafusion_rmq_logical::common::options as datafusion_rmq;
/// use datafusion::prelude::SessionConfig;
/// use datafusion_rmq::{ByteSize, EngineChoice, RmqOptions};
///
/// let mut options = RmqOptions::default();
/// options.engine = EngineChoice::Cpu;
/// options.index_memory_limit = ByteSize(1 << 30);
/// let config = SessionConfig::new().with_option_extension(options);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RmqOptions {
    /// The engine that computes range minima and searches sorted keys.
    pub engine: EngineChoice,
    /// Whether plain SQL becomes a range join where a rule matches. The range functions and `range_join()` work in
    /// either case.
    pub rewrite: bool,
    /// Whether an index is cached for later queries if its table can tell that its data has not changed.
    pub keep_indexes: bool,
    /// The maximum memory of cached indexes and the columns copied for them.
    pub index_memory_limit: ByteSize,
    /// The directory in which indexes over Parquet files, or their columns, survive the process; empty if they are kept
    /// in memory alone.
    pub index_directory: String,
    /// The number of threads that build the index of a large column; 0 uses all cores.
    pub build_threads: usize,
    /// The CUDA devices to use. Each has a copy of every index on devices.
    pub devices: DeviceList,
    /// The maximum memory of indexes on each device; `None` uses most of the free memory.
    pub device_memory_limit: Option<ByteSize>,
    /// Whether joins over a range that return rows, and EXISTS over a range, become range joins. Needs `rewrite`. With
    /// `always`, joins with GROUP BY do so however few rows have equal keys.
    pub range_joins: RangeJoinChoice,
    /// How range joins divide their build side.
    pub join_mode: JoinModeChoice,
    /// Whether a range join reads only what its windows can reach of files.
    pub pruning: PruningChoice,
    /// The most bytes of probe rows that a range join reads to learn its windows before it reads files; 0 for none.
    pub pruning_memory: ByteSize,
    /// The schema of the default catalog whose tables are the indexes that CREATE INDEX has named.
    pub index_schema: String,
    /// What the session does for an engine for several machines. It is no option of SQL: the engine sets it.
    #[doc(hidden)]
    pub role: SessionRole,
    /// What the session keeps.
    follower: Follower,
}

/// What a session does for an engine for several machines.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SessionRole {
    /// Nothing that joins have to know. A plan that another process has sent may be executed in part, and its other
    /// partitions elsewhere.
    #[default]
    None,
    /// The engine divides the session's plans into tasks: joins of the mode `Auto` state what a task needs.
    DividesPlans,
    /// A plan that another process has sent is a task, all of whose partitions are executed here: joins may read the
    /// probe rows of all partitions before they read files.
    RunsTasks,
}

/// What the options bound, and which gives way when one is set lower.
pub trait FollowsOptions: fmt::Debug + Send + Sync {
    /// Called when one of these is set: `keep_indexes`, `index_memory_limit`, `device_memory_limit`.
    fn follow(&self, options: &RmqOptions);
}

/// What follows the options. It is none of them, so all are equal.
#[derive(Debug, Clone, Default)]
struct Follower(Option<Weak<dyn FollowsOptions>>);

impl PartialEq for Follower {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for Follower {}

impl Default for RmqOptions {
    fn default() -> Self {
        Self {
            engine: EngineChoice::Auto,
            rewrite: true,
            keep_indexes: true,
            index_memory_limit: ByteSize(8 << 30),
            index_directory: String::new(),
            build_threads: 0,
            devices: DeviceList(vec![0]),
            device_memory_limit: None,
            range_joins: RangeJoinChoice::Auto,
            join_mode: JoinModeChoice::Auto,
            pruning: PruningChoice::Auto,
            pruning_memory: ByteSize(64 << 20),
            index_schema: "rmq".to_string(),
            role: SessionRole::default(),
            follower: Follower::default(),
        }
    }
}

/// The description of each option in `information_schema.df_settings`.
const HELP: [(&str, &str); 13] = [
    (
        "rmq.engine",
        "Which engine answers ranges: 'cpu', 'cuda' for NVIDIA GPUs, or 'auto', which takes the one that should be done first",
    ),
    (
        "rmq.rewrite",
        "Whether plain SQL, such as a join over a range with GROUP BY, becomes a range join where it is recognised, and window \
         frames are answered as ranges. When false, DataFusion plans them",
    ),
    (
        "rmq.keep_indexes",
        "Whether the index of a column is kept for later queries when its table can tell that nothing changed. When false, every \
         query builds its own",
    ),
    (
        "rmq.index_memory_limit",
        "The most memory that indexes, and the columns copied for them, may take: bytes, or with a unit K, M, G or T. Over it \
         those go that save least for their bytes, and that have not been used for long",
    ),
    (
        "rmq.index_directory",
        "A directory in which columns of Parquet files that range functions read, and the sorted rows of range joins over such \
         files, are written, and found by the next process; '' for none",
    ),
    (
        "rmq.build_threads",
        "How many threads build the index of a large column; 0 takes all cores",
    ),
    (
        "rmq.devices",
        "The CUDA devices to use, by number with commas between, such as '0,1'. Each holds every index; rmq_devices() lists them",
    ),
    (
        "rmq.device_memory_limit",
        "The most memory of each CUDA device that indexes may take: bytes, or with a unit K, M, G or T; '' for most of what is \
         free. Over it those go that save least for their bytes, and that have not been used for long",
    ),
    (
        "rmq.range_joins",
        "Whether joins over a range that return rows, and EXISTS over a range, become range joins: 'auto', where DataFusion would \
         compare many pairs of rows, 'always' where they can, or 'never'. With 'always', joins with GROUP BY do so however few rows have \
         equal keys",
    ),
    (
        "rmq.join_mode",
        "Whether the searched side of a range join is built once and 'shared' by all partitions, is 'collected' first, which engines \
         that divide a plan into tasks need, or both sides are 'partitioned' by their equality keys where they can be; 'auto' is 'shared' \
         on one machine and one of the others on several",
    ),
    (
        "rmq.pruning",
        "Whether a range join over Parquet files reads only the files, row groups and pages that its windows can reach: 'auto', where \
         that is less than reading all once and keeping it, 'always', or 'never'",
    ),
    (
        "rmq.pruning_memory",
        "The most memory of the rows that bring the windows of a range join, which are read before files are: bytes, or with a unit \
         K, M, G or T. Of more rows the windows are not known in advance, and all is read; 0 for always",
    ),
    (
        "rmq.index_schema",
        "The schema of the default catalog in which CREATE INDEX makes a table for each index, to describe and drop it",
    ),
];

/// The name of a schema.
fn parse_schema(value: &str) -> Result<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    if value.is_empty() || !value.chars().all(is_name) {
        return config_err!(
            "rmq.index_schema = '{value}' is not the name of a schema: letters, digits and underscores"
        );
    }
    Ok(value.to_string())
}

impl ExtensionOptions for RmqOptions {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "engine" => self.engine = value.parse()?,
            "rewrite" => self.rewrite = parse(key, value, "true or false")?,
            "keep_indexes" => self.keep_indexes = parse(key, value, "true or false")?,
            "index_memory_limit" => self.index_memory_limit = value.parse()?,
            "index_directory" => self.index_directory = value.to_string(),
            "build_threads" => {
                self.build_threads = parse(key, value, "a whole number, 0 for all cores")?;
            }
            "devices" => self.devices = value.parse()?,
            "device_memory_limit" => {
                self.device_memory_limit = match value.trim() {
                    "" => None,
                    size => Some(parse(
                        key,
                        size,
                        "a whole number of bytes, one with a unit K, M, G or T such as '40G', or '' for most of what is free",
                    )?),
                }
            }
            "range_joins" => self.range_joins = value.parse()?,
            "row_joins" => {
                log::warn!("the option rmq.row_joins is called rmq.range_joins now");
                self.range_joins = value.parse()?;
            }
            "join_mode" => self.join_mode = value.parse()?,
            "pruning" => self.pruning = value.parse()?,
            "pruning_memory" => {
                self.pruning_memory = parse(
                    key,
                    value.trim(),
                    "a whole number of bytes, or one with a unit K, M, G or T such as '64M'",
                )?;
            }
            "index_schema" => self.index_schema = parse_schema(value)?,
            _ => {
                let known = HELP.map(|(name, _)| name);
                let similar = did_you_mean(key, known.map(str::to_string));
                if similar.is_empty() {
                    let known = known.join(", ");
                    return config_err!("there is no option rmq.{key}; there are {known}");
                }
                return config_err!("there is no option rmq.{key}{similar}");
            }
        }
        let bounds_memory = ["keep_indexes", "index_memory_limit", "device_memory_limit"];
        if bounds_memory.contains(&key)
            && let Some(follower) = self.follower.0.as_ref().and_then(Weak::upgrade)
        {
            follower.follow(self);
        }
        Ok(())
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        let values = [
            self.engine.to_string(),
            self.rewrite.to_string(),
            self.keep_indexes.to_string(),
            self.index_memory_limit.to_string(),
            self.index_directory.clone(),
            self.build_threads.to_string(),
            self.devices.to_string(),
            self.device_memory_limit
                .map_or(String::new(), |limit| limit.to_string()),
            self.range_joins.to_string(),
            self.join_mode.to_string(),
            self.pruning.to_string(),
            self.pruning_memory.to_string(),
            self.index_schema.clone(),
        ];
        let entry = |((key, description), value): ((&str, &'static str), String)| ConfigEntry {
            key: key.to_string(),
            value: Some(value),
            description,
        };
        HELP.into_iter().zip(values).map(entry).collect()
    }
}

fn parse<T: FromStr>(key: &str, value: &str, expected: &str) -> Result<T> {
    value
        .to_ascii_lowercase()
        .parse()
        .or_else(|_| config_err!("rmq.{key} = '{value}': expected {expected}"))
}

impl ConfigExtension for RmqOptions {
    const PREFIX: &'static str = "rmq";
}

impl RmqOptions {
    /// Reads the options from `config`; the defaults if it has none.
    #[must_use]
    pub fn of(config: &ConfigOptions) -> Self {
        config.extensions.get::<Self>().cloned().unwrap_or_default()
    }

    /// The same options, which `follower` follows when they are set.
    pub fn followed_by(self, follower: Weak<dyn FollowsOptions>) -> Self {
        Self {
            follower: Follower(Some(follower)),
            ..self
        }
    }

    /// Whether range joins are planned with one build side for all partitions of the probe side: not where they are to
    /// be partitioned or collected, nor where plans are divided.
    #[must_use]
    pub fn shares_build_sides(&self) -> bool {
        match self.join_mode {
            JoinModeChoice::Collected | JoinModeChoice::Partitioned => false,
            JoinModeChoice::Auto => self.role != SessionRole::DividesPlans,
            JoinModeChoice::Shared => true,
        }
    }

    /// Whether plain SQL becomes a range join.
    pub fn rewrites(config: &ConfigOptions) -> bool {
        let options = config.extensions.get::<Self>();
        options.is_none_or(|options| options.rewrite)
    }

    /// The number of threads that build an index, at least one.
    pub fn threads(&self) -> usize {
        match self.build_threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        }
    }

    /// The options with which CUDA devices are opened. The catalog of indexes limits their memory, and the column's
    /// index falls back to the CPU, so the engine does neither.
    pub fn cuda(&self) -> CudaOptions {
        CudaOptions {
            devices: self.devices.0.clone(),
            ..CudaOptions::default()
        }
    }
}

/// Declares the values of an option that is one of several words. As text, letters may be upper or lower case.
macro_rules! words {
    (
        $(#[$attribute:meta])*
        $values:ident, $option:literal, { $($(#[$meaning:meta])* $value:ident = $word:literal,)+ }
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub enum $values {
            $($(#[$meaning])* $value,)+
        }

        impl FromStr for $values {
            type Err = DataFusionError;

            fn from_str(s: &str) -> Result<Self> {
                match s.to_ascii_lowercase().as_str() {
                    $($word => Ok(Self::$value),)+
                    _ => {
                        let [others @ .., last] = [$($word),+];
                        let others = others.join("', '");
                        config_err!("{} = '{s}': expected '{others}' or '{last}'", $option)
                    }
                }
            }
        }

        impl Display for $values {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$value => $word,)+
                })
            }
        }
    };
}

words!(
    /// The engine that computes range minima and searches sorted keys.
    EngineChoice, "rmq.engine", {
        /// The engine with the lower estimated time, by the number of rows and of ranges.
        #[default]
        Auto = "auto",
        /// The CPU engine.
        Cpu = "cpu",
        /// The engine for NVIDIA GPUs. A query fails at planning if there is no usable device.
        Cuda = "cuda",
    }
);

words!(
    /// Which joins over a range become range joins.
    RangeJoinChoice, "rmq.range_joins", {
        /// Those for which DataFusion would compare many pairs of rows, as far as is known.
        #[default]
        Auto = "auto",
        /// All that can.
        Always = "always",
        /// None.
        Never = "never",
    }
);

words!(
    /// How range joins divide their build side among the partitions of the probe side.
    JoinModeChoice, "rmq.join_mode", {
        /// The faster one: `Shared` on one machine. Engines for several machines choose between the others.
        #[default]
        Auto = "auto",
        /// One build side for all partitions.
        Shared = "shared",
        /// The same, for engines that divide a plan into tasks: the join requires the whole build side in each of them.
        Collected = "collected",
        /// One build side for each partition, where both sides can be partitioned by the equality keys.
        Partitioned = "partitioned",
    }
);

words!(
    /// Whether range joins read only what their windows can reach of files.
    PruningChoice, "rmq.pruning", {
        /// Where that is less than reading all rows once and keeping them.
        #[default]
        Auto = "auto",
        /// In all joins whose windows are known before files are read, even if the rows could be kept.
        Always = "always",
        /// Nowhere.
        Never = "never",
    }
);

/// The ordinals of CUDA devices, at least one and without duplicates. As text they are separated by commas: `'0,1'`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceList(Vec<usize>);

impl DeviceList {
    /// Makes a list of these ordinals.
    ///
    /// # Errors
    /// A configuration error if the list is empty or has duplicates.
    pub fn try_new(ordinals: &[usize]) -> Result<Self> {
        let texts: Vec<_> = ordinals.iter().map(ToString::to_string).collect();
        texts.join(",").parse()
    }

    /// The ordinals, in the order in which they were given.
    #[must_use]
    pub fn ordinals(&self) -> &[usize] {
        &self.0
    }
}

impl FromStr for DeviceList {
    type Err = DataFusionError;

    fn from_str(s: &str) -> Result<Self> {
        let error = |what: &str| {
            config_err!(
                "rmq.devices = '{s}': {what}; expected numbers of CUDA devices with commas between, such as '0' or '0,1'"
            )
        };
        let mut ordinals = vec![];
        for part in s.split(',').map(str::trim) {
            match part.parse::<usize>() {
                Err(_) => return error(&format!("'{part}' is not a device number")),
                Ok(ordinal) if ordinals.contains(&ordinal) => {
                    return error(&format!("{ordinal} is listed twice"));
                }
                Ok(ordinal) => ordinals.push(ordinal),
            }
        }
        Ok(Self(ordinals))
    }
}

impl Display for DeviceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, ordinal) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{ordinal}")?;
        }
        Ok(())
    }
}

/// A number of bytes. As text it may have a unit, `'512M'`, `'8G'`, or none, `'1000000'`. Units are powers of 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ByteSize(pub usize);

const UNITS: [(&str, u32); 4] = [("T", 40), ("G", 30), ("M", 20), ("K", 10)];

impl FromStr for ByteSize {
    type Err = DataFusionError;

    fn from_str(s: &str) -> Result<Self> {
        let upper = s.trim().to_ascii_uppercase();
        let without_b = upper
            .strip_suffix("IB")
            .or(upper.strip_suffix('B'))
            .unwrap_or(&upper);
        let (digits, shift) = UNITS
            .iter()
            .find_map(|(unit, shift)| Some((without_b.strip_suffix(unit)?, *shift)))
            .unwrap_or((without_b, 0));
        digits
            .trim_end()
            .parse::<usize>()
            .ok()
            .and_then(|n| n.checked_mul(1_usize.checked_shl(shift)?))
            .map(Self)
            .ok_or_else(|| {
                DataFusionError::Configuration(format!(
                    "'{s}' is not a size: expected a whole number of bytes, or one with a unit K, M, G or T, such as '512M'"
                ))
            })
    }
}

impl Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        match UNITS
            .iter()
            .find(|(_, shift)| bytes != 0 && bytes.trailing_zeros() >= *shift)
        {
            Some((unit, shift)) => write!(f, "{}{unit}", bytes >> shift),
            None => write!(f, "{bytes}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_devices_are_read_and_shown() {
        for (text, ordinals, shown) in [
            ("0", vec![0], "0"),
            ("0,1", vec![0, 1], "0,1"),
            (" 3 , 0", vec![3, 0], "3,0"),
        ] {
            let list: DeviceList = text.parse().unwrap();
            assert_eq!(list.ordinals(), ordinals);
            assert_eq!(list.to_string(), shown);
        }
        for text in ["", "0,", "a", "-1", "0 1", "1,1", "0x1", "all"] {
            let error = text.parse::<DeviceList>().unwrap_err().to_string();
            assert!(
                error.contains(&format!("rmq.devices = '{text}'")),
                "{error}"
            );
            assert!(error.contains("such as '0' or '0,1'"), "{error}");
        }
    }

    #[test]
    fn every_option_is_set_to_what_it_shows() {
        let mut options = RmqOptions::default();
        for (key, value) in [
            ("engine", "cuda"),
            ("devices", "2,0"),
            ("device_memory_limit", "40G"),
            ("build_threads", "3"),
            ("index_directory", "/var/lib/rmq indexes"),
            ("range_joins", "never"),
            ("join_mode", "partitioned"),
        ] {
            options.set(key, value).unwrap();
            let entries = options.entries();
            let entry = entries.iter().find(|e| e.key == format!("rmq.{key}"));
            assert_eq!(entry.unwrap().value.as_deref(), Some(value), "{key}");
        }
        options.set("row_joins", "always").unwrap();
        assert_eq!(
            options.range_joins,
            RangeJoinChoice::Always,
            "its former name"
        );
        assert_eq!(options.cuda().devices, [2, 0]);
        options.set("device_memory_limit", "").unwrap();
        assert_eq!(options.device_memory_limit, None);
    }

    #[test]
    fn byte_sizes_are_read_and_shown() {
        for (text, bytes, shown) in [
            ("0", 0, "0"),
            ("1000", 1000, "1000"),
            ("4k", 4096, "4K"),
            ("512M", 512 << 20, "512M"),
            ("8 GiB", 8 << 30, "8G"),
            ("1536MB", 1536 << 20, "1536M"),
            ("2T", 2 << 40, "2T"),
        ] {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!(size, ByteSize(bytes), "{text}");
            assert_eq!(size.to_string(), shown, "{text}");
        }
        for text in [
            "",
            "G",
            "-1",
            "1.5G",
            "99999999999999999999",
            "99999999999T",
            "4X",
        ] {
            let error = text.parse::<ByteSize>().unwrap_err().to_string();
            assert!(
                error.contains(&format!("'{text}' is not a size")),
                "{error}"
            );
        }
    }
}
