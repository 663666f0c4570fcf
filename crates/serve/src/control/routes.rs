//! The routes, each with what it needs: none can be added without saying so.

use super::doors::{Access, Rules, need_right};
use crate::server::Control;
use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodFilter, MethodRouter, on};
use std::sync::Arc;

/// Routes being collected, whose handlers share a state.
pub struct Routes<S = Control> {
    rules: Arc<Rules>,
    router: Router<S>,
    list: Vec<(Method, &'static str, Access)>,
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    /// None yet.
    pub fn new(rules: Arc<Rules>) -> Self {
        Self { rules, router: Router::new(), list: Vec::new() }
    }

    /// Looking: GET, and HEAD with it.
    pub fn get<H: Handler<T, S>, T: 'static>(
        self,
        path: &'static str,
        access: Access,
        handler: H,
    ) -> Self {
        self.with(Method::GET, path, access, on(MethodFilter::GET, handler))
    }

    /// Changing something.
    pub fn change<H: Handler<T, S>, T: 'static>(
        self,
        method: Method,
        path: &'static str,
        handler: H,
    ) -> Self {
        let filter = MethodFilter::try_from(method.clone()).expect("a method of HTTP/1.1");
        self.with(method, path, Access::Change, on(filter, handler))
    }

    /// One method of a path, by a router of its own state or layers.
    pub fn with(
        mut self,
        method: Method,
        path: &'static str,
        access: Access,
        mut handler: MethodRouter<S>,
    ) -> Self {
        let looks = method == Method::GET;
        assert!(looks != (access == Access::Change), "{path}: only a GET changes nothing");
        if access != Access::Open {
            handler = handler.route_layer(from_fn_with_state(Arc::clone(&self.rules), need_right));
        }
        self.list.push((method, path, access));
        self.router = self.router.route(path, handler);
        self
    }

    /// All of them, and what each needs.
    pub fn into_parts(self) -> (Router<S>, Vec<(Method, &'static str, Access)>) {
        (self.router, self.list)
    }
}
