//! Options of the owner's session.

use datafusion::common::Result;
use datafusion::common::config::ExtensionOptions;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::SessionState;
use datafusion::prelude::SessionConfig;
use datafusion_ffi::config::extension_options::FFI_ExtensionOptions;

/// How the names of options of this extension begin.
const RMQ: &str = "rmq.";

/// The state with the owner's options of `DataFusion`, and those of `rmq.*` that the owner has set. An owner keeps
/// whatever is set, unknown names, too, and has no RESET for it: an empty value, where it is none, counts as not set.
pub fn with_options(state: SessionState, owner: &SessionConfig) -> Result<SessionState> {
    let mut config = state.config().clone();
    let (options, owner) = (config.options_mut(), owner.options().as_ref().clone());
    if let Some(set) = owner.extensions.get::<FFI_ExtensionOptions>() {
        for entry in set.entries() {
            if let Some(value) = entry.value.filter(|_| entry.key.starts_with(RMQ))
                && let Err(error) = options.set(&entry.key, &value)
                && !value.is_empty()
            {
                let undo = format!("SET {} = '' makes the session usable again", entry.key);
                return Err(error.context(undo));
            }
        }
    }
    options.execution = owner.execution;
    options.optimizer = owner.optimizer;
    options.sql_parser = owner.sql_parser;
    options.explain = owner.explain;
    options.format = owner.format;
    options.spark = owner.spark;
    // It has one, which a new one would take the place of.
    let config = config.with_create_default_catalog_and_schema(false);
    let builder = SessionStateBuilder::new_from_existing(state);
    Ok(builder.with_config(config).build())
}
