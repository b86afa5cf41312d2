//! Launches on an idle stream, each by way of a graph of one kernel.
//!
//! The driver submits a graph in half the time of a kernel, its new parameters included: on the host of an H200 in 1.7 us instead of
//! 3.3, and the kernel ends 2.0 us earlier. Behind other work a launch of the kernel itself is better, as it may begin before what
//! precedes it has ended.

use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use warptile_cuda_sys::{
    CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUkernelNodeParams, CUresult,
};

use super::{Holder, Inner, Stream};
use crate::context::{Context, lock};
use crate::driver::call;
use crate::error::Result;
use crate::launch::LaunchConfig;
use crate::module::Loaded;

/// Kernels of a stream that have graphs.
const KERNELS: usize = 8;

/// Launches of a kernel on the idle stream before it gets a graph: to make one costs what a few launches save.
const LAUNCHES_BEFORE: u32 = 2;

/// A kernel that was launched on the idle stream.
pub(super) struct Alone {
    function: CUfunction,
    /// The handle means this kernel as long as this module is loaded.
    module: Weak<Loaded>,
    launches: u32,
    graph: Option<OneKernel>,
}

/// A graph of one kernel.
struct OneKernel {
    context: Context,
    /// Keeps `node` valid.
    graph: CUgraph,
    node: CUgraphNode,
    exec: CUgraphExec,
    /// Held only to be dropped.
    _module: Arc<Loaded>,
}

impl Stream {
    /// Notes that the stream is idle, as far as this crate has to do with it.
    pub(super) fn note_idle(&self) {
        self.inner.idle.store(true, Ordering::Release);
    }

    /// Launches a kernel by its graph, if the stream is idle and the launch is one that a graph takes; `None` if the kernel itself is to
    /// be launched.
    ///
    /// # Errors
    /// The driver's error; then nothing was queued.
    ///
    /// # Safety
    /// As [`Kernel::launch`](crate::Kernel::launch): `function` is a kernel of the module, the context is current and the stream, which
    /// is in no capture, is of it; `params` points to a pointer to each parameter of the kernel.
    pub(crate) unsafe fn launch_alone(
        &self,
        module: &Arc<Loaded>,
        function: CUfunction,
        config: &LaunchConfig,
        params: *mut *mut c_void,
    ) -> Result<Option<()>> {
        let idle = self.inner.idle.swap(false, Ordering::AcqRel);
        let plain = config.cluster.is_none() && !config.cooperative;
        if !idle || !plain || !matches!(self.inner.holder, Holder::Us) {
            return Ok(None);
        }
        let (context, api) = (self.context(), self.api());
        let node = CUkernelNodeParams {
            function,
            grid_dim: config.grid,
            block_dim: config.block,
            shared_mem_bytes: config.dynamic_shared_bytes,
            kernel_params: params,
            extra: std::ptr::null_mut(),
            kernel: std::ptr::null_mut(),
            context: warptile_cuda_sys::CUcontext::NULL,
        };
        // Held until the launch is queued: a graph has one set of parameters.
        let mut kernels = lock(&self.inner.alone);
        let kernel = known(&mut kernels, module, function);
        kernel.launches = kernel.launches.saturating_add(1);
        // Making a graph breaks the captures that the thread minds, and the documentation does not say that a change of its
        // parameters leaves them intact.
        let _relaxed = context.relaxed()?;
        match &kernel.graph {
            None if kernel.launches <= LAUNCHES_BEFORE => return Ok(None),
            None => {
                // SAFETY: the caller's promise.
                match unsafe { OneKernel::new(module, context, &node) } {
                    Some(graph) => kernel.graph = Some(graph),
                    None => {
                        // Whatever the reason: after as many launches again it may be gone.
                        kernel.launches = 0;
                        return Ok(None);
                    }
                }
            }
            Some(graph) => {
                let set_params = api.graph_exec_kernel_node_set_params;
                // SAFETY: the graph is live and the node its own; the caller's promise is that of the parameters, which are copied.
                // Launches before this one keep theirs.
                let code = unsafe { set_params(graph.exec, graph.node, &node) };
                if code != CUresult::SUCCESS {
                    // The launch of the kernel itself will tell what is wrong.
                    return Ok(None);
                }
            }
        }
        let Some(graph) = &kernel.graph else {
            return Ok(None);
        };
        // SAFETY: graph and stream are live and of the current context; the rest is the caller's promise. The graph keeps the
        // module.
        unsafe {
            call!(
                self,
                "launching a graph of one kernel",
                graph_launch(graph.exec, self.raw())
            )
        }?;
        Ok(Some(()))
    }
}

/// The entry of a kernel, the last of the list from now on.
fn known<'a>(
    kernels: &'a mut Vec<Alone>,
    module: &Arc<Loaded>,
    function: CUfunction,
) -> &'a mut Alone {
    let known = |kernel: &Alone| {
        kernel.function == function && std::ptr::eq(kernel.module.as_ptr(), Arc::as_ptr(module))
    };
    let at = kernels.iter().position(known);
    let kernel = match at {
        Some(at) => kernels.remove(at),
        None => {
            if kernels.len() == KERNELS {
                drop(kernels.remove(0));
            }
            Alone {
                function,
                module: Arc::downgrade(module),
                launches: 0,
                graph: None,
            }
        }
    };
    kernels.push(kernel);
    let last = kernels.len() - 1;
    &mut kernels[last]
}

impl OneKernel {
    /// A graph of one launch; `None` if the driver makes none.
    ///
    /// # Safety
    /// As [`Stream::launch_alone`].
    unsafe fn new(
        module: &Arc<Loaded>,
        context: &Context,
        launch: &CUkernelNodeParams,
    ) -> Option<OneKernel> {
        let mut made = OneKernel {
            context: context.clone(),
            graph: CUgraph::NULL,
            node: CUgraphNode::NULL,
            exec: CUgraphExec::NULL,
            _module: module.clone(),
        };
        let api = context.api();
        // SAFETY: all results outlive the calls, and each handle is used once the call that made it has succeeded. The parameters are
        // copied. What was made is destroyed by `drop`.
        let done = unsafe {
            (api.graph_create)(&mut made.graph, 0) == CUresult::SUCCESS
                && (api.graph_add_kernel_node)(
                    &mut made.node,
                    made.graph,
                    std::ptr::null(),
                    0,
                    launch,
                ) == CUresult::SUCCESS
                && (api.graph_instantiate_with_flags)(&mut made.exec, made.graph, 0)
                    == CUresult::SUCCESS
        };
        done.then_some(made)
    }
}

impl Drop for OneKernel {
    fn drop(&mut self) {
        let context = &self.context;
        let _current = context.enter_to_release();
        let relaxed = context.relaxed();
        let operation = "destroying a graph of one kernel";
        if self.exec != CUgraphExec::NULL {
            // SAFETY: made by `new` and destroyed once, here. A launch that still runs is finished by the driver before the graph's
            // resources go.
            let destroyed = unsafe { call!(context, operation, graph_exec_destroy(self.exec)) };
            context.defer(destroyed);
        }
        if self.graph != CUgraph::NULL {
            // SAFETY: as above.
            let destroyed = unsafe { call!(context, operation, graph_destroy(self.graph)) };
            context.defer(destroyed);
        }
        context.defer(relaxed.map(drop));
    }
}

impl Inner {
    /// Destroys the graphs and lets their modules go. The context is current.
    pub(super) fn give_up_alone(&mut self) {
        lock(&self.alone).clear();
    }
}
