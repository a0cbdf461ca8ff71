"""Components that methods share.

adapters/      adapted weights of linear layers: their forms, products, injection into a model
prompts/       prompts after the class token, among tokens, on pixels; losses on them
views/         random views of a batch or per image, and forward passes over views
segmentation/  views at several scales, labels of pixels, dropout at test time, masked maps
source/        moments of source features, distances from them; replay of source images
families/      base classes of similar methods: alignment, contrast, shifting, sample weighting
encoder        segments of an encoder, and hooks on its blocks
evolution      search without gradients
fisher         Fisher information, and the penalty on changes that it weighs
hog            histograms of oriented gradients
importance     importance of the values of a parameter
memory         memory bank of features and predictions, pseudo labels from nearest neighbours
selection      selection and weights of images for entropy minimisation
sharpness      the gradient at the sharpest point nearby
style          style of a batch, from the first layers of VGG19
"""
