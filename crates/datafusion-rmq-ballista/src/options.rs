//! The options of a client that executors follow.

use std::any::Any;

use datafusion::common::config::{ConfigEntry, ConfigExtension, ExtensionOptions};
use datafusion::common::{Result, config_err};
use datafusion_rmq::{EngineChoice, PruningChoice};

/// What a scheduler takes of the options `rmq.*`. Ballista sends all options that a session has, from the client to the
/// scheduler and from there to executors, where they replace those of the machine.
#[derive(Debug, Clone, Default)]
pub struct SentOptions {
    pub engine: EngineChoice,
    pub pruning: PruningChoice,
}

impl ConfigExtension for SentOptions {
    const PREFIX: &'static str = "rmq";
}

impl ExtensionOptions for SentOptions {
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
            "pruning" => self.pruning = value.parse()?,
            // Ballista goes on with the next.
            _ => return config_err!("rmq.{key} is an option of each executor"),
        }
        Ok(())
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        let entry = |name: &str, value: String, description| ConfigEntry {
            key: format!("rmq.{name}"),
            value: Some(value),
            description,
        };
        vec![
            entry(
                "engine",
                self.engine.to_string(),
                "Which engine answers ranges",
            ),
            entry(
                "pruning",
                self.pruning.to_string(),
                "Whether range joins read only what their windows reach of files",
            ),
        ]
    }
}
