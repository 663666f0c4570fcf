//! Kinds of drives: those of one profile that are as quick as it says share a shape, so that the solver asks once for all
//! of them. One that is slower is a kind of its own.

use super::solver::Shape;

/// How many nodes are of each kind, which is a place in the shapes of the fleet. One of which there is none any more
/// keeps its place until the next one takes it.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    nodes: Vec<u32>,
}

impl Kinds {
    /// A node is of a kind that is new.
    pub fn add(&mut self, shapes: &mut Vec<Shape>, shape: Shape) -> usize {
        if let Some(kind) = self.nodes.iter().position(|nodes| *nodes == 0) {
            (self.nodes[kind], shapes[kind]) = (1, shape);
            return kind;
        }
        self.nodes.push(1);
        shapes.push(shape);
        shapes.len() - 1
    }

    /// One more node is of this kind.
    pub fn join(&mut self, kind: usize) -> usize {
        self.nodes[kind] += 1;
        kind
    }

    /// A node is of this kind no more.
    pub fn leave(&mut self, kind: usize) {
        self.nodes[kind] -= 1;
    }
}
