//! What was measured of cases so far, so that hours of experiments which were interrupted go on where
//! they were.
//!
//! Invariant: an entry is used only for the very same case: same file, variables, scale, seed, and, by
//! the fingerprint, same build.

use super::Options;
use super::file::At;
use super::run::{Job, Measures, Plan};
use flash::crc;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Seek, Write};
use std::path::Path;
use std::sync::Mutex;

/// What one case measured at one point with one seed.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Name of the experiment.
    pub experiment: &'a str,
    /// `small` or `full`.
    pub scale: &'static str,
    /// Its seed.
    pub seed: u64,
    /// Name of the case.
    pub case: &'a str,
    /// Sweeps with their values.
    pub at: &'a At,
    /// By metric.
    pub values: &'a BTreeMap<String, f64>,
}

/// Takes rows as they are measured, from the thread that did.
type Rows = Box<dyn Fn(&[Row<'_>]) + Send + Sync>;

/// Where results are kept, and those of an earlier run.
#[derive(Default)]
pub struct Kept {
    before: BTreeMap<String, Entry>,
    file: Option<Mutex<File>>,
    rows: Option<Rows>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Entry {
    key: String,
    /// By point of the job.
    values: Vec<Measures>,
}

impl Kept {
    /// Goes on with what lies at `path`, if it is of the same `fingerprint`; else, and where `anew` says so,
    /// begins it anew. Another run that uses it is an error of [`io::ErrorKind::WouldBlock`].
    pub fn open(path: &Path, fingerprint: &str, anew: bool) -> io::Result<Self> {
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::Error(error) => error,
            TryLockError::WouldBlock => io::ErrorKind::WouldBlock.into(),
        })?;
        let mut lines = BufReader::new(&file).lines().map_while(Result::ok);
        let mut before = BTreeMap::new();
        if !anew && lines.next().is_some_and(|line| line == fingerprint) {
            // The last line may have been cut off.
            let entries = lines.map_while(|line| serde_json::from_str::<Entry>(&line).ok());
            before = entries.map(|entry| (entry.key.clone(), entry)).collect();
        }
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{fingerprint}")?;
        for entry in before.values() {
            writeln!(file, "{}", serde_json::to_string(entry)?)?;
        }
        Ok(Self { before, file: Some(Mutex::new(file)), rows: None })
    }

    /// Tells `rows` what each device measured as soon as it did, and at once what was kept of it.
    pub fn telling(self, rows: impl Fn(&[Row<'_>]) + Send + Sync + 'static) -> Self {
        Self { rows: Some(Box::new(rows)), ..self }
    }

    pub(super) fn tell(&self, rows: &[Row<'_>]) {
        if let Some(tell) = &self.rows {
            tell(rows);
        }
    }

    /// Whether anything is kept.
    pub fn is_kept(&self) -> bool {
        self.file.is_some()
    }

    /// Cases that an earlier run measured.
    pub fn cases(&self) -> usize {
        self.before.len()
    }

    pub(super) fn get(&self, key: &str, points: usize) -> Option<&[Measures]> {
        let entry = self.before.get(key).filter(|entry| entry.values.len() == points)?;
        Some(&entry.values)
    }

    /// What was kept of these experiments is told and forgotten, that the next run measures them anew. Of others an
    /// interrupted run may have kept something, too: whether nothing is left.
    pub fn forget(&self, experiments: &[&str]) -> io::Result<bool> {
        let Some(file) = &self.file else { return Ok(true) };
        let mut file = file.lock().expect("no writer panics");
        file.rewind()?;
        let mut lines = BufReader::new(&*file).lines();
        let fingerprint = lines.next().transpose()?.unwrap_or_default();
        let is_of_others = |line: &String| {
            serde_json::from_str(line).is_ok_and(|Entry { key, .. }| {
                key.split(' ').next().is_some_and(|name| !experiments.contains(&name))
            })
        };
        let others: Vec<String> = lines.map_while(Result::ok).filter(is_of_others).collect();
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{fingerprint}")?;
        others.iter().try_for_each(|line| writeln!(file, "{line}"))?;
        Ok(others.is_empty())
    }

    /// Keeps a result. What cannot be kept is measured again, no more.
    pub(super) fn add(&self, key: &str, values: &[Measures]) {
        let Some(file) = &self.file else { return };
        let entry = Entry { key: key.to_owned(), values: values.to_vec() };
        if let Ok(mut line) = serde_json::to_string(&entry) {
            line.push('\n');
            let _ = file.lock().expect("no writer panics").write_all(line.as_bytes());
        }
    }
}

/// Names a job of an experiment.
pub(super) fn key(plan: &Plan<'_>, options: &Options, job: &Job) -> String {
    let set = crc(format!("{:?}", options.set).as_bytes());
    let (name, sum, scale) = (&plan.experiment.name, plan.experiment.sum, options.scale.name());
    let ((case, first), seed) = (job.points[0], job.seed);
    format!("{name} {sum:08x} {scale} {set:08x} case {case} from point {first} seed {seed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_forgotten_and_what_was_kept_of_others_is_not() {
        let path = std::env::temp_dir().join(format!("weir-told-{}", std::process::id()));
        let iops = BTreeMap::from([("iops".to_owned(), 1.5)]);
        let values = [Measures { values: iops, ..Measures::default() }];
        let kept = Kept::open(&path, "build 1", true).unwrap();
        kept.add("tssd-sweep of a seed", &values);
        kept.add("tssd of a seed", &values);
        assert!(!kept.forget(&["tssd"]).unwrap());
        kept.add("tssd of another seed", &values);
        drop(kept);
        let kept = Kept::open(&path, "build 1", false).unwrap();
        assert_eq!(kept.get("tssd-sweep of a seed", 1), Some(&values[..]));
        assert_eq!(kept.get("tssd of another seed", 1), Some(&values[..]));
        assert_eq!(kept.cases(), 2);
        assert!(kept.forget(&["tssd", "tssd-sweep"]).unwrap());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_was_kept_is_there_for_the_same_build_only_and_a_torn_line_is_dropped() {
        let path = std::env::temp_dir().join(format!("weir-kept-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let iops = BTreeMap::from([("iops".to_owned(), 0.1 + 0.2)]);
        let curves = BTreeMap::from([("cdf read".to_owned(), vec![(0.1 + 0.2, 1.0)])]);
        let values = Measures { values: iops, curves };
        let result = [values.clone()];
        let kept = Kept::open(&path, "build 1", false).unwrap();
        assert_eq!(kept.cases(), 0);
        kept.add("first", &result);
        kept.add("second", &result);
        let busy = Kept::open(&path, "build 1", false).err().unwrap();
        assert_eq!(busy.kind(), io::ErrorKind::WouldBlock);
        drop(kept);
        let length = std::fs::metadata(&path).unwrap().len();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(length - 5).unwrap();
        let kept = Kept::open(&path, "build 1", false).unwrap();
        assert_eq!(kept.get("first", 1), Some(&[values][..]));
        assert_eq!((kept.get("first", 2), kept.get("second", 1)), (None, None));
        drop(kept);
        assert_eq!(Kept::open(&path, "build 1", true).unwrap().cases(), 0);
        Kept::open(&path, "build 1", false).unwrap().add("first", &result);
        assert_eq!(Kept::open(&path, "build 2", false).unwrap().cases(), 0);
        std::fs::remove_file(&path).unwrap();
    }
}
