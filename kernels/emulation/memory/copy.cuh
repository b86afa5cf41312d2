#pragma once
#include "base/element.cuh"
#include "memory/copy_number.cuh"
namespace warptile {
inline void cp_async_16(void* shared, const void* source, bool valid) { copies[threadIdx.x].ask(shared, source, 16, valid); }
inline void cp_async_16(unsigned to, const void* source, bool valid) { cp_async_16(shared + to, source, valid); }
inline void cp_async_16_once(unsigned to, const void* source, bool valid) { cp_async_16(to, source, valid); }
inline void cp_async_commit() { copies[threadIdx.x].commit(); }
template <int PENDING> void cp_async_wait() { copies[threadIdx.x].wait(PENDING); }
}
