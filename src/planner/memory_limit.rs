//! The session's memory pool, in which what is kept between queries gives way.

use std::sync::Arc;

use datafusion::execution::SessionStateBuilder;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::prelude::SessionContext;

use crate::kept::catalog::{IndexCatalog, SessionCatalog};
use crate::kept::giving_pool::GivingPool;

/// Has indexes give way in the session's memory pool, as [`register`](crate::register) does, after
/// `SET datafusion.runtime.memory_limit` has made another one of it. What is kept was registered in the pool before,
/// and is dropped. [`sql`](crate::sql()) does this; a program that plans statements itself calls it before each.
pub fn follow_memory_limit(ctx: &SessionContext) {
    let state_ref = ctx.state_ref();
    let giving = {
        let state = state_ref.read();
        let Some(indexes) = SessionCatalog::of(state.config()) else {
            return;
        };
        let giving = giving(state.runtime_env(), &indexes);
        if giving.is_some() {
            indexes.clear();
        }
        giving
    };
    if let Some(giving) = giving {
        let mut state = state_ref.write();
        *state = SessionStateBuilder::new_from_existing(state.clone())
            .with_session_id(state.session_id().to_string())
            .with_runtime_env(giving)
            .build();
    }
}

/// The same runtime environment with a memory pool in which these indexes give way; `None` if it has such a pool, or
/// one without a limit.
pub(crate) fn giving(
    runtime: &Arc<RuntimeEnv>,
    indexes: &Arc<IndexCatalog>,
) -> Option<Arc<RuntimeEnv>> {
    let pool = &runtime.memory_pool;
    let known = pool.downcast_ref::<GivingPool>();
    if known.is_some_and(|pool| pool.is_of(indexes)) {
        return None;
    }
    let memory_pool = GivingPool::of(pool, indexes)?;
    Some(Arc::new(RuntimeEnv {
        memory_pool,
        ..RuntimeEnv::clone(runtime)
    }))
}
