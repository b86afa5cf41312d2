// What CUDA's C++ has, of one thread.
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
#define __device__
#define __forceinline__ inline
#define __builtin_assume(condition) ((void)(condition))
#define __global__
#define __shared__
#define __align__(n) __attribute__((aligned(n)))
inline unsigned fbits(float f){unsigned u;memcpy(&u,&f,4);return u;}
inline float bitsf(unsigned u){float f;memcpy(&f,&u,4);return f;}
inline unsigned tobits(float f){return fbits(f);} inline unsigned tobits(unsigned u){return u;} inline unsigned tobits(int i){return (unsigned)i;}
template<class T> T frombits(unsigned u); template<> inline float frombits<float>(unsigned u){return bitsf(u);} template<> inline int frombits<int>(unsigned u){return (int)u;} template<> inline unsigned frombits<unsigned>(unsigned u){return u;}
inline int __clz(int x){return x?__builtin_clz((unsigned)x):32;}
inline int __popc(unsigned x){return __builtin_popcount(x);}
inline int __ffs(unsigned x){return __builtin_ffs((int)x);}
inline unsigned __umulhi(unsigned x,unsigned y){return (unsigned)((unsigned long long)x*y>>32);}
inline unsigned __vmaxu2(unsigned x,unsigned y){return std::max(x>>16,y>>16)<<16|std::max(x&0xffff,y&0xffff);} inline unsigned __vminu2(unsigned x,unsigned y){return std::min(x>>16,y>>16)<<16|std::min(x&0xffff,y&0xffff);}
inline unsigned __byte_perm(unsigned x,unsigned y,unsigned at){unsigned r=0;for(int i=0;i<4;i++)r|=(unsigned)(((unsigned long long)y<<32|x)>>8*(at>>4*i&7)&0xff)<<8*i;return r;}
struct float2{float x,y;}; struct float4{float x,y,z,w;}; struct alignas(16) uint4{unsigned x,y,z,w;}; struct uint2{unsigned x,y;};
inline void __threadfence(){}
inline unsigned atomicInc(unsigned*p,unsigned lim){unsigned o=*p;*p=o>=lim?0:o+1;return o;}
template<class T> T __ldg(const T*p){return *p;} template<class T> T __ldcg(const T*p){return *p;}
inline void __stcg(float4*p,float4 v){*p=v;} inline void __stcg(float2*p,float2 v){*p=v;}
inline void __stcg(uint4*p,uint4 v){*p=v;}
inline float __fdiv_rn(float a,float b){volatile float r=a/b;return r;}
inline float __fadd_rn(float a,float b){volatile float r=a+b;return r;}
inline float __log2f(float x){return log2f(x);}
inline float __int_as_float(int x){return bitsf(x);} inline int __float_as_int(float x){return (int)fbits(x);}
inline float __uint_as_float(unsigned x){return bitsf((int)x);}
inline unsigned __float_as_uint(float x){return fbits(x);}
using std::min; using std::max;
// sin and cos of pi * x.
inline void sincospif(float x, float* sine, float* cosine)
{
    *sine = (float)sin(M_PI * (double)x);
    *cosine = (float)cos(M_PI * (double)x);
}
