#pragma once
namespace warptile {
constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f, MAX_FLOAT = 3.4028234663852886e38f;
inline float not_a_number(){return NAN;} inline float positive_infinity(){return INFINITY;} inline float negative_infinity(){return -INFINITY;}
inline float exp2_approximate(float x){return exp2f(x);} inline float reciprocal_approximate(float x){return 1/x;} inline float reciprocal_of_any(float x){return 1/x;}
inline float min_keeping_nan(float x,float l){return x!=x?x:fminf(x,l);} inline float clamp_keeping_nan(float x,float l){return x!=x?x:fmaxf(fminf(x,l),-l);}
inline float tanh_approximate(float x){return tanhf(x);}
}
