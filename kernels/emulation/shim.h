// What CUDA's C++ has, of the threads of a CTA.
#pragma once
#include "scalar.h"
#include "threads.h"
inline Barrier* cta_bar; inline Barrier* warp_bar[16];
// A fragment's rows, and another one's columns.
struct Product { float a[16][16], b[8][16]; };
struct Exchange { unsigned w[32][2]; Product product; };
inline Exchange ex[16];
#define WB() warp_bar[threadIdx.x/32]->arrive_and_wait()
#define EX ex[threadIdx.x/32]
#define LANE (threadIdx.x%32)
inline void __syncthreads(){cta_bar->arrive_and_wait();}
inline void __syncwarp(){WB();}
template<class T> T __shfl_xor_sync(unsigned,T x,int m){EX.w[LANE][0]=tobits(x);WB();T r=frombits<T>(EX.w[LANE^m][0]);WB();return r;}
inline unsigned long long __shfl_sync(unsigned,unsigned long long x,int l){EX.w[LANE][0]=(unsigned)x;EX.w[LANE][1]=(unsigned)(x>>32);WB();unsigned long long r=EX.w[l%32][0]|(unsigned long long)EX.w[l%32][1]<<32;WB();return r;}
template<class T> T shfl32(T x,int l){EX.w[LANE][0]=tobits(x);WB();T r=frombits<T>(EX.w[l%32][0]);WB();return r;}
inline unsigned __shfl_sync(unsigned,unsigned x,int l){return shfl32(x,l);} inline int __shfl_sync(unsigned,int x,int l){return (int)shfl32((unsigned)x,l);}
inline float __shfl_sync(unsigned,float x,int l){EX.w[LANE][0]=tobits(x);WB();float r=bitsf(EX.w[l%32][0]);WB();return r;}
template<class T> T __shfl_up_sync(unsigned,T x,int d){EX.w[LANE][0]=tobits(x);WB();T r=frombits<T>(EX.w[(int)LANE>=d?LANE-d:LANE][0]);WB();return r;}
inline bool __any_sync(unsigned,bool p){EX.w[LANE][0]=p;WB();bool r=false;for(int i=0;i<32;i++)r|=EX.w[i][0];WB();return r;}
namespace warptile { inline unsigned char __attribute__((aligned(1024))) shared[400000]; }
inline size_t __cvta_generic_to_shared(const void*p){return (const unsigned char*)p-warptile::shared;}
inline void* __cvta_shared_to_generic(size_t o){return warptile::shared+o;}
// What the launch before writes last, and which threads have waited for it.
inline std::function<void()> at_predecessors_end;
inline bool has_waited[512];
namespace warptile{constexpr bool BEGINS_EARLY=true; void grid_dependency_wait(); inline void grid_dependency_launch(){} inline unsigned increment_and_wrap(unsigned*p,unsigned lim){unsigned o=*p;*p=o>=lim?0:o+1;return o;} inline unsigned increment_and_wrap_relaxed(unsigned*p,unsigned lim){return increment_and_wrap(p,lim);}}
