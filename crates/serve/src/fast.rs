//! The fast tier of a running server: how it is taken away.
//!
//! Each shard empties its fast units and says so; when all have, the device notes that it has no fast
//! tier any more, and only then do the shards close it. So whatever ends the server in between, the
//! next start finds the device with its fast tier or without, and all of its data either way.

use crate::device::{Device, DeviceError};
use crate::runtime::shard::Message;
use crate::server::Control;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};

/// How far a detach is.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Detach {
    /// Nobody asked.
    #[default]
    No,
    /// The fast tier is being emptied.
    Draining,
    /// The device runs without one; that lay here, unless it was in memory.
    Done(Option<PathBuf>),
    /// Why not.
    Failed(String),
}

/// The device, as long as its shards run, and what becomes of its fast tier. A volume of a pool has neither.
pub struct FastControl {
    device: Mutex<Option<Device>>,
    detach: Mutex<Detach>,
}

impl FastControl {
    pub(crate) fn new(device: Option<Device>) -> Self {
        Self { device: Mutex::new(device), detach: Mutex::default() }
    }

    fn device(&self) -> MutexGuard<'_, Option<Device>> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the fast tier is, if there is one beside the device.
    pub fn path(&self) -> Option<PathBuf> {
        self.device().as_ref()?.fast_path().map(Into::into)
    }

    /// Where the device is now and who it is, if it is in a folder and open for writing.
    pub(crate) fn folder(&self) -> Option<(PathBuf, u128)> {
        self.device().as_ref()?.folder()
    }

    /// The shards have ended well, and nothing of the device is left open.
    pub(crate) fn closed(&self) -> Result<(), DeviceError> {
        self.device().as_mut().map_or(Ok(()), Device::close)
    }

    /// How far a detach is.
    pub fn detach(&self) -> Detach {
        self.detach.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, detach: Detach) {
        *self.detach.lock().unwrap_or_else(PoisonError::into_inner) = detach;
    }
}

/// Begins to take the fast tier away; [`FastControl::detach`] tells how it goes.
pub fn detach(control: &Control) -> Result<(), String> {
    let fast = control.fast();
    if fast.detach() == Detach::Draining {
        return Ok(());
    }
    fast.set(Detach::Draining);
    let mine = control.clone();
    let started = std::thread::Builder::new().name("detach".into()).spawn(move || {
        crate::panics::end_the_process();
        let result = drain(&mine);
        if let Detach::Failed(reason) = &result {
            tracing::error!(%reason, "the fast tier stays");
        }
        mine.fast().set(result);
    });
    match started {
        Ok(_) => Ok(()),
        Err(error) => {
            let reason = format!("a thread cannot be started: {error}");
            fast.set(Detach::Failed(reason.clone()));
            Err(reason)
        }
    }
}

fn drain(control: &Control) -> Detach {
    let (sender, answers) = mpsc::channel();
    control.tell_all(|| {
        let sender = sender.clone();
        let answer = Box::new(move |gone| {
            // The server may be ending.
            sender.send(gone).ok();
        });
        Message::DetachFast { answer }
    });
    drop(sender);
    let gone = answers.iter().filter(|&gone| gone).count();
    if gone < control.shards() {
        let reason = "it could not be emptied: the device has none, part of it does not answer, the \
                      server is ending, or a zoned device has too few zones open at a time for the \
                      streams and a checkpoint without it; `weir status` and the log tell more";
        return Detach::Failed(reason.into());
    }
    let detached = control.fast().device().as_mut().map_or(Ok(None), Device::detach_fast);
    match detached {
        Ok(path) => {
            control.tell_all(|| Message::DropFast);
            let place = path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
            tracing::info!(fast = %place, "the fast tier is detached: nothing needs it any more");
            Detach::Done(path)
        }
        Err(error) => Detach::Failed(format!("the device cannot note it: {error}")),
    }
}
