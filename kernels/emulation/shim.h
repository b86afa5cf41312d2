#pragma once
#undef _FORTIFY_SOURCE // its longjmp goes to no other stack
#include <cmath>
#include <cstring>
#include <cstdio>
#include <cstdlib>
#include <atomic>
#include <vector>
#include <functional>
#include <memory>
#include <cstdint>
#include <algorithm>
#include "threads.h"
#define __device__
#define __builtin_assume(condition) ((void)(condition))
#define __global__
#define __shared__
#define __align__(n) __attribute__((aligned(n)))
inline Barrier* cta_bar; inline Barrier* warp_bar[8];
struct Exchange { unsigned w[32][6]; };
inline Exchange ex[8];
#define WB() warp_bar[threadIdx.x/32]->arrive_and_wait()
#define EX ex[threadIdx.x/32]
#define LANE (threadIdx.x%32)
inline void __syncthreads(){cta_bar->arrive_and_wait();}
inline void __syncwarp(){WB();}
inline unsigned fbits(float f){unsigned u;memcpy(&u,&f,4);return u;}
inline float bitsf(unsigned u){float f;memcpy(&f,&u,4);return f;}
inline unsigned tobits(float f){return fbits(f);} inline unsigned tobits(unsigned u){return u;}
template<class T> T frombits(unsigned u); template<> inline float frombits<float>(unsigned u){return bitsf(u);} template<> inline int frombits<int>(unsigned u){return (int)u;} template<> inline unsigned frombits<unsigned>(unsigned u){return u;}
template<class T> T __shfl_xor_sync(unsigned,T x,int m){EX.w[LANE][0]=tobits(x);WB();T r=frombits<T>(EX.w[LANE^m][0]);WB();return r;}
inline unsigned long long __shfl_sync(unsigned,unsigned long long x,int l){EX.w[LANE][0]=(unsigned)x;EX.w[LANE][1]=(unsigned)(x>>32);WB();unsigned long long r=EX.w[l%32][0]|(unsigned long long)EX.w[l%32][1]<<32;WB();return r;}
template<class T> T shfl32(T x,int l){EX.w[LANE][0]=tobits(x);WB();T r=frombits<T>(EX.w[l%32][0]);WB();return r;}
inline unsigned __shfl_sync(unsigned,unsigned x,int l){return shfl32(x,l);} inline int __shfl_sync(unsigned,int x,int l){return (int)shfl32((unsigned)x,l);}
inline float __shfl_sync(unsigned,float x,int l){EX.w[LANE][0]=tobits(x);WB();float r=bitsf(EX.w[l%32][0]);WB();return r;}
inline int __clz(int x){return x?__builtin_clz((unsigned)x):32;}
template<class T> T __shfl_up_sync(unsigned,T x,int d){EX.w[LANE][0]=tobits(x);WB();T r=frombits<T>(EX.w[(int)LANE>=d?LANE-d:LANE][0]);WB();return r;}
inline unsigned __umulhi(unsigned x,unsigned y){return (unsigned)((unsigned long long)x*y>>32);}
inline bool __any_sync(unsigned,bool p){EX.w[LANE][0]=p;WB();bool r=false;for(int i=0;i<32;i++)r|=EX.w[i][0];WB();return r;}
struct float2{float x,y;}; struct float4{float x,y,z,w;}; struct alignas(16) uint4{unsigned x,y,z,w;}; struct uint2{unsigned x,y;};
namespace warptile { inline unsigned char __attribute__((aligned(128))) shared[400000]; }
inline size_t __cvta_generic_to_shared(const void*p){return (const unsigned char*)p-warptile::shared;}
inline void* __cvta_shared_to_generic(size_t o){return warptile::shared+o;}
inline void __threadfence(){}
// What the launch before writes last.
inline std::function<void()> at_predecessors_end;
namespace warptile{constexpr bool BEGINS_EARLY=true; void wait_for_predecessor(); inline void let_successor_begin(){} inline unsigned increment_and_wrap(unsigned*p,unsigned lim){unsigned o=*p;*p=o>=lim?0:o+1;return o;} inline unsigned increment_and_wrap_relaxed(unsigned*p,unsigned lim){return increment_and_wrap(p,lim);}}
inline unsigned atomicInc(unsigned*p,unsigned lim){unsigned o=*p;*p=o>=lim?0:o+1;return o;}
template<class T> T __ldg(const T*p){return *p;} template<class T> T __ldcg(const T*p){return *p;}
inline void __stcg(float4*p,float4 v){*p=v;} inline void __stcg(float2*p,float2 v){*p=v;}
inline float __fdiv_rn(float a,float b){volatile float r=a/b;return r;}
inline float __fadd_rn(float a,float b){volatile float r=a+b;return r;}
inline float __log2f(float x){return log2f(x);}
inline float __int_as_float(int x){return bitsf(x);}
inline float __uint_as_float(unsigned x){return bitsf((int)x);}
inline unsigned __float_as_uint(float x){return fbits(x);}
using std::min; using std::max;
// sin and cos of pi * x.
inline void sincospif(float x, float* sine, float* cosine)
{
    *sine = (float)sin(M_PI * (double)x);
    *cosine = (float)cos(M_PI * (double)x);
}
