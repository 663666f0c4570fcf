//! Seeded bugs of the control plane, of opening and of repair, to test the tests: each breaks one rule that a
//! promise rests on. Compiled in always and dead without the feature `mutants`.

/// One wrong behaviour.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mutant {
    /// Opening does not wait until a member of each band that may be open has been fenced.
    FenceNotCounted,
    /// What an owner changes in the plane is not bound to its ownership.
    StaleGenerationAccepted,
    /// Opening takes the longest copy for the band and all members for holders of it.
    PrefixNotCompleted,
    /// Opening does not write down where it cut a band.
    CutNotRecorded,
    /// Opening does not wait out the lease of the last owner.
    LeaseNotWaitedOut,
    /// The embedded plane answers before its log is stored.
    AnswerBeforeStored,
    /// Repair frees a copy without counting those that stay.
    LastCopyDropped,
    /// Repair frees the old copy when it asks for the new one.
    FreedTooEarly,
    /// Repair frees a damaged copy to make another one in its place, and has not read the one that it is made of.
    FreedUnread,
    /// Repair frees it before it is on record that the band lacks a copy.
    PlaceNotRecorded,
    /// The client takes a page for written when all members but the last have it.
    ReplyBeforeLastReplica,
    /// The client goes on with what it was told, when it may not show it any more.
    LeaseNotKept,
    /// A life that is freed while a node is away is not kept on record.
    LifeForgotten,
    /// A volume is taken for deleted though there is a record of it.
    LivingForgotten,
    /// The record of a band goes without a look at who has it sealed.
    ClosedUnsealed,
    /// Nothing is needed of a node that was given up, though it may have bands that nobody else has.
    UnsureNotCounted,
    /// A band that nobody has is erased, and stays on record.
    UnsureStays,
}

impl Mutant {
    /// Whether `planted` is this one, in a build that has mutants.
    pub fn is(self, planted: Option<Self>) -> bool {
        cfg!(feature = "mutants") && planted == Some(self)
    }

    /// Every mutant of control and opening.
    pub const OPENING: &[Self] = &[
        Self::FenceNotCounted,
        Self::StaleGenerationAccepted,
        Self::PrefixNotCompleted,
        Self::CutNotRecorded,
        Self::LeaseNotWaitedOut,
        Self::AnswerBeforeStored,
    ];

    /// Those that the simulation of the whole must find. Others that can be planted there it does not meet often
    /// enough; [`Mutant::OPENING`] and [`Mutant::REPAIR`] are found by simulations of their own.
    pub const WHOLE: &[Self] = &[
        Self::StaleGenerationAccepted,
        Self::PrefixNotCompleted,
        Self::FreedTooEarly,
        Self::ReplyBeforeLastReplica,
    ];

    /// Those that it must find where there are only as many nodes as copies, and copies rot.
    pub const NARROW: &[Self] = &[Self::PlaceNotRecorded];

    /// Those that it must find where more is lost than copies make up for.
    pub const LOSING: &[Self] = &[Self::UnsureNotCounted, Self::UnsureStays];

    /// Every mutant of repair.
    pub const REPAIR: &[Self] = &[Self::LastCopyDropped, Self::FreedTooEarly, Self::FreedUnread];
}
