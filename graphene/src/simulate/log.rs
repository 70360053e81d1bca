//! What an instance wrote, by element.

use std::cell::Cell;

use super::element::{Element, Numbered};

/// What became of an element within an instance.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    /// What it is a part of.
    pub(super) root: u32,
    /// When it was first written, and last.
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) before: f64,
    pub(super) after: f64,
}

/// What became of elements. Neighbours stand together, in a page, as whoever writes one mostly writes the next one too.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Where each page begins.
    pages: Numbered<u64, usize>,
    written: Vec<Option<Written>>,
    /// The page that was asked for last.
    last: Cell<Option<(u64, usize)>>,
}

const PAGE: u64 = 8;

impl Log {
    pub(super) fn get(&self, element: Element) -> Option<&Written> {
        let page = self.page(element.0 / PAGE)?;
        self.written[page + (element.0 % PAGE) as usize].as_ref()
    }

    fn page(&self, number: u64) -> Option<usize> {
        if let Some(last) = self.last.get().filter(|last| last.0 == number) {
            return Some(last.1);
        }
        let page = *self.pages.get(&number)?;
        self.last.set(Some((number, page)));
        Some(page)
    }

    /// Adds to what became of an element what else did; no two writes are of one time.
    pub(super) fn add(&mut self, element: Element, new: Written) {
        let number = element.0 / PAGE;
        let page = self.page(number).unwrap_or_else(|| {
            let page = self.written.len();
            self.written.resize(page + PAGE as usize, None);
            self.pages.insert(number, page);
            page
        });
        let known = self.written[page + (element.0 % PAGE) as usize].get_or_insert(new);
        if new.first < known.first {
            (known.first, known.before) = (new.first, new.before);
        }
        if new.last > known.last {
            (known.last, known.after) = (new.last, new.after);
        }
    }

    /// Forgets all, but keeps its room.
    pub(super) fn clear(&mut self) {
        self.pages.clear();
        self.written.clear();
        self.last.set(None);
    }

    /// All elements that were written.
    pub(super) fn all(&self) -> impl Iterator<Item = (Element, Written)> {
        self.pages.iter().flat_map(|(number, &page)| {
            let elements = (number * PAGE..).map(Element).zip(&self.written[page..]);
            elements.take(PAGE as usize).filter_map(|(element, of)| Some((element, (*of)?)))
        })
    }
}
