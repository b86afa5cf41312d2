// What CUDA's C++ has, of the threads of a CTA.
#pragma once
// Kernels are compiled for little of the compiler's time, and what stands for the GPU to run fast.
#pragma GCC push_options
#pragma GCC optimize("O2")
#include "scalar.h"
#include "threads.h"
inline Barrier* cta_bar; inline Barrier* warp_bar[16];
// A fragment's rows, another one's columns, and the sums.
struct Product { float a[16][16], b[16][8], c[16][8]; };
struct Exchange { unsigned w[32][2]; Product product; };
// Two for each warp, in turns: lanes write one again after all have met over the other, when nobody reads it any more.
inline Exchange ex[16][2];
inline unsigned char exchanges[512];
inline Exchange& next_exchange() { return ex[threadIdx.x / 32][exchanges[threadIdx.x]++ % 2]; }
#define WB() warp_bar[threadIdx.x/32]->arrive_and_wait()
#define EX Exchange& e = next_exchange()
#define LANE (threadIdx.x%32)
inline void __syncthreads(){cta_bar->arrive_and_wait();}
inline void __syncwarp(){WB();}
template<class T> T __shfl_xor_sync(unsigned,T x,int m){EX;e.w[LANE][0]=tobits(x);WB();return frombits<T>(e.w[LANE^m][0]);}
inline unsigned long long __shfl_sync(unsigned,unsigned long long x,int l){EX;e.w[LANE][0]=(unsigned)x;e.w[LANE][1]=(unsigned)(x>>32);WB();return e.w[l%32][0]|(unsigned long long)e.w[l%32][1]<<32;}
template<class T> T shfl32(T x,int l){EX;e.w[LANE][0]=tobits(x);WB();return frombits<T>(e.w[l%32][0]);}
inline unsigned __shfl_sync(unsigned,unsigned x,int l){return shfl32(x,l);} inline int __shfl_sync(unsigned,int x,int l){return (int)shfl32((unsigned)x,l);}
inline float __shfl_sync(unsigned,float x,int l){EX;e.w[LANE][0]=tobits(x);WB();return bitsf(e.w[l%32][0]);}
template<class T> T __shfl_up_sync(unsigned,T x,int d){EX;e.w[LANE][0]=tobits(x);WB();return frombits<T>(e.w[(int)LANE>=d?LANE-d:LANE][0]);}
inline bool __any_sync(unsigned,bool p){EX;e.w[LANE][0]=p;WB();bool r=false;for(int i=0;i<32;i++)r|=e.w[i][0];return r;}
inline unsigned __ballot_sync(unsigned,bool p){EX;e.w[LANE][0]=p;WB();unsigned r=0;for(int i=0;i<32;i++)r|=(unsigned)(e.w[i][0]!=0)<<i;return r;}
namespace warptile { inline unsigned char __attribute__((aligned(1024))) shared[400000]; }
inline size_t __cvta_generic_to_shared(const void*p){return (const unsigned char*)p-warptile::shared;}
inline void* __cvta_shared_to_generic(size_t o){return warptile::shared+o;}
// What the launch before writes last, and which threads have waited for it.
inline std::function<void()> at_predecessors_end;
inline bool has_waited[512];
namespace warptile{constexpr bool BEGINS_EARLY=true; void grid_dependency_wait(); inline void grid_dependency_launch(){} inline unsigned increment_and_wrap(unsigned*p,unsigned lim){unsigned o=*p;*p=o>=lim?0:o+1;return o;} inline unsigned increment_and_wrap_relaxed(unsigned*p,unsigned lim){return increment_and_wrap(p,lim);}}
#pragma GCC pop_options
