//! What a [`Caching`](super::Caching) consists of.

/// The processor, cleaning, and what goes past.
#[derive(Clone, Debug, PartialEq)]
pub struct CachingConfig {
    /// Processors that take work from one queue.
    pub cores: u32,
    /// Of each command and each cleaning job.
    pub command_ns: u64,
    /// Of each line that it touches.
    pub line_ns: u64,
    /// Cleaning begins when more than this share of the lines is dirty, in percent.
    pub clean_above: f64,
    /// From here on it has all its depth.
    pub clean_full: f64,
    /// Cleaning jobs at a time.
    pub clean_depth: u32,
    /// Most bytes of a job, which lies between two multiples of this.
    pub clean_bytes: u64,
    /// A stream of writes goes past once it is so long; 0 for never.
    pub past_bytes: u64,
    /// And only with commands at least so large.
    pub past_io_bytes: u64,
}
