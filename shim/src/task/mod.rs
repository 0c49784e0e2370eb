//! What a container and its processes are, and what may happen to them when. Pure: no I/O, no clock, no tokio.
//!
//! The state machine is [`Container`]; it takes a [`Step`] and answers with [`Effect`]s or [`Denied`]. Slow work
//! (a call of runc) is bracketed by two steps, so that nobody holds a lock while runc runs:
//!
//! ```text
//! init:  Creating ─Created─▶ Created ─BeginStart─▶ Starting ─Started─▶ Running ⇄ (Pausing/Paused/Resuming)
//!                              │  ▲──StartFailed─────┘  │                 │
//!                              │ Exited                 │ Exited (kept    │ Exited
//!                              ▼                        ▼  until Started) ▼
//!                            Stopped ◀──────────────────┴───────────── Stopped
//!        Created | Stopped | Prepared ─BeginDelete─▶ Deleting ─Deleted─▶ Gone      (DeleteFailed goes back)
//!
//!        from a checkpoint: Creating ─Prepared─▶ Prepared ─BeginStart─▶ Restoring ─Started─▶ Running
//!                                                    ▲─────StartFailed──────┘
//!        to a checkpoint:   Running | Paused ─BeginCheckpoint─▶ (busy) ─CheckpointEnded─▶ as before
//!
//! exec:  Added ─BeginStart─▶ Starting ─Started─▶ Running ─Exited─▶ Stopped ─BeginDelete─▶ (removed)
//!          ▲────StartFailed─────┘
//! ```

mod container;
mod event;
mod identity;
mod request;

pub use container::{Container, Denied, Effect, Exit, Happened, Phase, Step, View};
pub use event::{Event, Pending};
pub use identity::{BadName, ContainerId, ExecId, Pid, Target};
pub use request::{
    AfterCheckpoint, Checkpoint, Create, Exec, Mount, Resources, Restore, RuncOptions,
    StdioRequest, Terminal,
};
