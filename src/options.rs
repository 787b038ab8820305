//! The options of this extension: `SET rmq.name = value`, explained by
//! `SELECT name, value, description FROM information_schema.df_settings WHERE name LIKE 'rmq.%'`.

use std::any::Any;
use std::fmt::{self, Display};
use std::str::FromStr;

use datafusion::common::config::{ConfigEntry, ConfigExtension, ConfigOptions, ExtensionOptions};
use datafusion::common::{DataFusionError, Result, config_err};

/// Options of range queries, prefix `rmq`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RmqOptions {
    /// Which engine answers ranges.
    pub engine: EngineChoice,
    /// Whether plain SQL becomes a range join where it is recognised.
    pub rewrite: bool,
    /// Whether an index is kept for later queries when its table can tell that nothing changed.
    pub keep_indexes: bool,
    /// The most memory that indexes, and the columns copied for them, may take.
    pub index_memory_limit: ByteSize,
    /// How many threads build the index of a large column; 0 takes all cores.
    pub build_threads: usize,
}

impl Default for RmqOptions {
    fn default() -> Self {
        Self {
            engine: EngineChoice::Auto,
            rewrite: true,
            keep_indexes: true,
            index_memory_limit: ByteSize(8 << 30),
            build_threads: 0,
        }
    }
}

/// What `information_schema.df_settings` says of each option.
const HELP: [(&str, &str); 5] = [
    ("rmq.engine", "Which engine answers ranges: 'auto' or 'cpu'"),
    (
        "rmq.rewrite",
        "Whether plain SQL, such as a join over a range with GROUP BY, becomes a range join where it is recognised. When false, \
         DataFusion plans it",
    ),
    (
        "rmq.keep_indexes",
        "Whether the index of a column is kept for later queries when its table can tell that nothing changed. When false, every \
         query builds its own",
    ),
    (
        "rmq.index_memory_limit",
        "The most memory that indexes, and the columns copied for them, may take: bytes, or with a unit K, M, G or T. Over it \
         the least recently used go",
    ),
    (
        "rmq.build_threads",
        "How many threads build the index of a large column; 0 takes all cores",
    ),
];

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
            "build_threads" => {
                self.build_threads = parse(key, value, "a whole number, 0 for all cores")?;
            }
            _ => {
                let known = HELP.map(|(name, _)| name).join(", ");
                return config_err!("there is no option rmq.{key}; there are {known}");
            }
        }
        Ok(())
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        let values = [
            self.engine.to_string(),
            self.rewrite.to_string(),
            self.keep_indexes.to_string(),
            self.index_memory_limit.to_string(),
            self.build_threads.to_string(),
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
    /// The options as they stand in `config`, or the defaults where the extension is not registered.
    #[must_use]
    pub fn of(config: &ConfigOptions) -> Self {
        config.extensions.get::<Self>().cloned().unwrap_or_default()
    }

    /// The number of threads to build with, at least one.
    pub(crate) fn threads(&self) -> usize {
        match self.build_threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        }
    }
}

/// Which engine answers ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum EngineChoice {
    /// The fastest engine there is for the work.
    #[default]
    Auto,
    /// The CPU engine.
    Cpu,
}

impl FromStr for EngineChoice {
    type Err = DataFusionError;

    fn from_str(s: &str) -> Result<Self> {
        match s.to_ascii_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            _ => config_err!("rmq.engine = '{s}': expected 'auto' or 'cpu'"),
        }
    }
}

impl Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
        })
    }
}

/// A number of bytes that people write with a unit: `'512M'`, `'8G'` or plain `1000000`. Units are powers of 1024.
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
